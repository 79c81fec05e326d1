"""What makes a declaration a definition. Each module checks one thing and notes every problem that it finds."""
