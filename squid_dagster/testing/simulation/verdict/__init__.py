"""The verdict on a simulated schedule: rules of every journal, and how runs end."""
