"""The warehouse: tables projected from folded runs, their files and their refresh."""
