"""A module that ends the process when it is imported, as a script without a guard does."""

import sys

sys.exit()
