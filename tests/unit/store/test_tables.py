"""Tests of store.tables: columns with a behaviour of their own."""

from datetime import UTC, datetime, timedelta, timezone

from sqlalchemy import Column, MetaData, Table, create_engine, insert, select

from store.tables import UtcDateTime


def test_time_of_any_zone_comes_back_as_the_same_moment() -> None:
    """The zone is turned into UTC before a database without zones drops it."""
    times = Table("times", MetaData(), Column("at", UtcDateTime))
    local = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    db_engine = create_engine("sqlite://")
    with db_engine.begin() as connection:
        times.create(connection)
        connection.execute(insert(times), [{"at": local}, {"at": None}])
        found = connection.execute(select(times.c.at)).scalars().all()
    db_engine.dispose()
    assert found == [local, None]
    assert found[0] is not None
    assert found[0].tzinfo is UTC
