"""The swap of a table for its newly built shadow, with the rights that roles have on it."""

from typing import LiteralString

from psycopg import sql

from squid_dagster.journal.postgres.connection.pool import PgConnection

SHADOW: LiteralString = "_shadow"
"""The suffix of the names of a shadow table and of its indexes."""

_INDEXES: LiteralString = "SELECT indexname FROM pg_catalog.pg_indexes WHERE schemaname = %s AND tablename = %s"
_OWNER: LiteralString = """SELECT pg_get_userbyid(relowner), relowner <> (SELECT oid FROM pg_roles
    WHERE rolname = current_user) FROM pg_catalog.pg_class WHERE oid = to_regclass(%s)"""
# An owner's rights come with the ownership. Rights on columns are ignored: we grant none.
_RIGHTS: LiteralString = """SELECT a.privilege_type, CASE WHEN a.grantee <> 0 THEN pg_get_userbyid(a.grantee) END,
        a.is_grantable
    FROM pg_catalog.pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
    WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner"""


def swap_in(connection: PgConnection, schema: str, table: str) -> None:
    """Drop a table, if it exists, and give its name, owner and rights to its shadow, in the open transaction.

    Raises:
        psycopg.errors.LockNotAvailable: another session holds a lock on it for longer than `lock_timeout`.
    """
    live, shadow = sql.Identifier(schema, table), sql.Identifier(schema, table + SHADOW)
    name = live.as_string(connection)
    # Before the rights are read, so that no other session changes them meanwhile.
    if (owner := connection.execute(_OWNER, (name,)).fetchone()) is not None:
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(live))
    rights = connection.execute(_RIGHTS, (name,)).fetchall()
    indexes = connection.execute(_INDEXES, (schema, table + SHADOW)).fetchall()
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(live))
    connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(shadow, sql.Identifier(table)))
    for (index,) in indexes:
        new = sql.Identifier(index.replace(SHADOW, "", 1))
        connection.execute(sql.SQL("ALTER INDEX {} RENAME TO {}").format(sql.Identifier(schema, index), new))
    for privilege, role, grantable in rights:
        connection.execute(
            sql.SQL("GRANT {} ON {} TO {}{}").format(
                sql.SQL(privilege),
                live,
                sql.SQL("PUBLIC") if role is None else sql.Identifier(role),
                sql.SQL(" WITH GRANT OPTION" if grantable else ""),
            )
        )
    if owner is not None and owner[1]:
        connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(live, sql.Identifier(owner[0])))
