"""The card store on Postgres: its table, its claims, its rebuild."""
