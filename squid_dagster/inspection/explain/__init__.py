"""Why a run is where it is: the case, the rules in their order, and the answer."""
