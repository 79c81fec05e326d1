"""The Postgres adapter: storage, live views, dispatch, rebuild, verification, migrations."""
