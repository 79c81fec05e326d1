"""Recovery: find runs that a crash left halfway, and append what should have followed."""
