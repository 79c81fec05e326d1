"""The database schema: names, numbered migrations, SQL functions, upgrade and drift."""
