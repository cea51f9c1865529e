"""SQL compared by what it gives: equal queries, unequal ones, attacks, and where execution is not possible."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

from tasks.scoring.sql import SqlExecution
from tasks.scoring.sql.databases import cases
from tasks.scoring.sql.engine import equal_results, image_of, result
from tasks.scoring.sql.schema import affinity, read_schema
from tasks.scoring.sql.text import is_ordered, sql_of_answer, statements

SCHEMA = """
CREATE TABLE harbour (
  Harbour_ID number PRIMARY KEY,
  Name text,
  Country text,
  Depth number
);
CREATE TABLE ferry (
  Ferry_ID number PRIMARY KEY,
  Name text,
  Home number REFERENCES harbour(Harbour_ID),
  Seats int,
  Built_Year text,
  Fare real,
  Sold others
);
"""
JOINED = (
    "SELECT T2.Name FROM harbour AS T1 JOIN ferry AS T2 ON T1.Harbour_ID = T2.Home "
    "WHERE T1.Country = 'Norway' AND T2.Seats > 120"
)
GROUPED = "SELECT Country, COUNT(*) FROM harbour GROUP BY Country HAVING COUNT(*) >= 2"
TOP = "SELECT Name FROM ferry ORDER BY Seats DESC LIMIT 1"
SORTED = "SELECT Name, Seats FROM ferry WHERE Fare < 7.5 ORDER BY Seats ASC, Name"
INSIDE = "SELECT Name FROM harbour WHERE Harbour_ID IN (SELECT Home FROM ferry WHERE Seats BETWEEN 50 AND 90)"
OTHERS = "SELECT Harbour_ID FROM harbour EXCEPT SELECT Home FROM ferry WHERE Built_Year = 1998"
BOTH = "SELECT Name FROM ferry UNION ALL SELECT Name FROM harbour"
SCORER = SqlExecution()


def reference(query: str, schema: str = SCHEMA, dialect: str = "sqlite") -> str:
    return json.dumps({"query": query, "schema": schema, "dialect": dialect})


def score(query: str, answer: str) -> float | None:
    assert cases(query, SCHEMA)
    return SCORER.item(answer, reference(query))


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        *((query, query) for query in (JOINED, GROUPED, TOP, SORTED, INSIDE, OTHERS)),
        (JOINED, JOINED.lower().replace("'norway'", "'Norway'").replace(" ", "\n") + ";"),
        (JOINED, JOINED.replace("T1", "a").replace("T2", "b").replace("SELECT b.Name", "SELECT b.Name AS ferry_name")),
        (
            JOINED,
            "SELECT f.Name FROM ferry f, harbour h "
            "WHERE f.Seats > 120 AND h.Country = 'Norway' AND f.Home = h.Harbour_ID",
        ),
        (
            JOINED,
            "SELECT Name FROM ferry WHERE Seats >= 121 AND Home IN (SELECT Harbour_ID FROM harbour WHERE "
            "Country = 'Norway')",
        ),
        (GROUPED, GROUPED.replace("COUNT(*)", "COUNT(1)")),
        (GROUPED, "SELECT * FROM (SELECT Country, SUM(1) AS n FROM harbour GROUP BY 1) WHERE n > 1"),
        (TOP, TOP.replace("Name", "ferry.Name")),
        (TOP, "SELECT Name FROM ferry WHERE Seats = (SELECT MAX(Seats) FROM ferry) LIMIT 1"),
        (SORTED, SORTED.replace("7.5 ", "7.50 ").replace("ASC", "")),
        (
            INSIDE,
            "SELECT h.Name FROM harbour h WHERE EXISTS (SELECT 1 FROM ferry f WHERE f.Home = h.Harbour_ID AND "
            "f.Seats >= 50 AND f.Seats <= 90)",
        ),
        (
            OTHERS,
            "SELECT Harbour_ID FROM harbour WHERE Harbour_ID NOT IN (SELECT Home FROM ferry WHERE Built_Year = '1998')",
        ),
        ("SELECT AVG(Fare) FROM ferry", "SELECT SUM(Fare) / COUNT(Fare) FROM ferry"),
        ('SELECT Name FROM harbour WHERE Country = "Norway"', "SELECT Name FROM harbour WHERE Country = 'Norway'"),
        (JOINED, f"```sql\n{JOINED};\n```\nThat is it."),
        (JOINED, f"The query is {JOINED}"),
        (JOINED, f" {JOINED}\nInstruction: another\nSQL Query: SELECT 1"),
        (JOINED, f"-- by; name\n{JOINED}; DROP TABLE ferry;"),
    ],
)
def test_queries_that_give_the_same_are_equal(query: str, answer: str) -> None:
    assert score(query, answer) == 1.0


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        (JOINED, JOINED.split(" WHERE")[0]),
        (JOINED, JOINED.split(" AND")[0]),
        (JOINED, JOINED.replace(">", ">=")),
        (JOINED, JOINED.replace("120", "119")),
        (JOINED, JOINED.replace("'Norway'", "'norway'")),
        (JOINED, JOINED.replace("AND", "OR")),
        (JOINED, JOINED.replace("SELECT", "SELECT DISTINCT")),
        (JOINED, JOINED.replace("T2.Name FROM", "T2.Name, T1.Country FROM")),
        (JOINED, JOINED.replace("T2.Name FROM", "T1.Name FROM")),
        (JOINED, f"{JOINED} AND T1.Country != 'Chile' AND T1.Name != 'Bergen'"),
        (GROUPED, GROUPED.replace("Country, COUNT(*) FROM", "COUNT(*), Country FROM")),
        (GROUPED, GROUPED.split(" HAVING")[0]),
        (GROUPED, GROUPED.replace(">= 2", "> 2")),
        (TOP, TOP.replace(" DESC", "")),
        (TOP, TOP.replace(" LIMIT 1", "")),
        (TOP, TOP.replace("1", "2")),
        (SORTED, SORTED.split(" ORDER")[0]),
        (SORTED, SORTED.replace("ASC", "DESC")),
        (SORTED, SORTED.replace("Name, Seats", "Seats, Name")),
        (INSIDE, INSIDE.replace("IN", "NOT IN", 1)),
        (INSIDE, INSIDE.replace("90", "89")),
        (OTHERS, OTHERS.split(" WHERE")[0]),
        ("SELECT DISTINCT Country FROM harbour", "SELECT Country FROM harbour"),
        ("SELECT AVG(Seats) FROM ferry", "SELECT SUM(Seats) FROM ferry"),
        ("SELECT MAX(Depth) FROM harbour", "SELECT MIN(Depth) FROM harbour"),
        ("SELECT SUM(Built_Year) FROM ferry", "SELECT AVG(Built_Year) FROM ferry"),
        ("SELECT COUNT(*) FROM ferry", "SELECT COUNT(DISTINCT Name) FROM ferry"),
        ("SELECT COUNT(*) FROM ferry", "SELECT COUNT(*) FROM harbour"),
        ("SELECT COUNT(*) FROM ferry WHERE Sold IS NULL", "SELECT COUNT(*) FROM ferry"),
        (BOTH, BOTH.replace("ALL ", "")),
        ("SELECT Name FROM ferry WHERE Name LIKE '%fjord%'", "SELECT Name FROM ferry WHERE Name LIKE 'fjord%'"),
        ("SELECT Name FROM ferry WHERE Sold > '2019-05-01'", "SELECT Name FROM ferry WHERE Sold < '2019-05-01'"),
        (JOINED, ""),
        (JOINED, ";"),
        (JOINED, "Norway"),
        (JOINED, JOINED.replace("Seats", "Chairs")),
        (JOINED, f"EXPLAIN {JOINED}"),
    ],
)
def test_queries_that_differ_are_not_equal(query: str, answer: str) -> None:
    assert score(query, answer) == 0.0


@pytest.mark.parametrize(
    "attack",
    [
        "ATTACH '{file}' AS other",
        "VACUUM INTO '{file}'",
        "DROP TABLE ferry",
        "DELETE FROM ferry",
        "UPDATE ferry SET Name = ''",
        "INSERT INTO ferry (Name) VALUES ('x')",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t AS SELECT 1",
        "WITH t AS (SELECT 1) DELETE FROM ferry",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_table_info('ferry')",
        "SELECT load_extension('{file}')",
        "SELECT random()",
        "SELECT writefile('{file}', 'x')",
        "BEGIN",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT COUNT(*) FROM t",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t",
        "WITH RECURSIVE t(n) AS (SELECT 'x' UNION ALL SELECT n || n FROM t) SELECT length(n) FROM t",
        "SELECT COUNT(*) FROM ferry a, ferry b, ferry c, ferry d, ferry e, ferry f, ferry g",
        "SELECT zeroblob(1000000000)",
        "SELECT '\0'",
        "SELECT '\ud800'",
        "SELECT CAST(x'ff' AS TEXT)",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT 1 " + "UNION ALL SELECT 1 " * 1000,
        "SELECT " + "9" * 6000,
    ],
)
def test_an_attack_fails_in_time_and_leaves_nothing(attack: str, tmp_path: Path) -> None:
    began = time.monotonic()
    assert score(JOINED, attack.replace("{file}", str(tmp_path / "file"))) == 0.0
    assert time.monotonic() - began < 5
    assert not list(tmp_path.iterdir())
    assert score(JOINED, JOINED) == 1.0


def test_a_query_that_sqlite_cannot_interrupt_is_killed() -> None:
    count = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5000)"
    hang = f"{count} SELECT sum(instr(hex(zeroblob(9000)), hex(zeroblob(4500)) || n)) FROM t"  # long calls, few steps
    scorer = SqlExecution(seconds=2.0)
    assert scorer.item(JOINED, reference(JOINED)) == 1.0
    began = time.monotonic()
    assert scorer.item(hang, reference(JOINED)) == 0.0
    assert 1.9 <= time.monotonic() - began < 6
    assert scorer.item(JOINED, reference(JOINED)) == 1.0
    scorer.worker.close()


IMAGE = image_of([("t", [("a", "INTEGER")], [(1,)])])


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT date('now'), date(), CURRENT_DATE", [("2025-01-01",) * 3]),
        ("SELECT datetime(' NOW '), CURRENT_TIMESTAMP, strftime('%Y-%m-%d %H:%M:%S')", [("2025-01-01 12:00:00",) * 3]),
        ("SELECT time('now', '+1 hour'), CURRENT_TIME", [("13:00:00", "12:00:00")]),
        ("SELECT unixepoch('now') - unixepoch(), julianday() - julianday('now')", [(0, 0.0)]),
        ("SELECT date('2020-02-28', '+1 day'), strftime('%Y', '1999-05-06')", [("2020-02-29", "1999")]),
        ("SELECT printf('%5.2f|%-4d|%s', 3.14159, 7, 'x'), format('%.3c', 'y')", [(" 3.14|7   |x", "yyy")]),
        ("SELECT printf('%% 2000000 %d', 3000000), printf('%*d', 3, 7)", [("% 2000000 3000000", "  7")]),
    ],
)
def test_an_answer_is_the_same_on_any_day(query: str, rows: list[tuple[object, ...]]) -> None:
    assert result(IMAGE, query) == rows


@pytest.mark.parametrize("text", ["'%.*c', 1e9, 'x'", "'%*d', 2000000000, 1", "'%999999999d', 1", "'%.999999999f', 1"])
def test_a_call_that_makes_a_long_text_is_refused_at_once(text: str) -> None:
    began = time.monotonic()
    assert result(IMAGE, f"SELECT length(printf({text}))") is None
    assert time.monotonic() - began < 0.5


def test_the_databases_are_the_same_every_time() -> None:
    first = cases(JOINED, SCHEMA)
    cases.cache_clear()
    again = cases(JOINED, SCHEMA)
    assert first is not again and [case.expected for case in again] == [case.expected for case in first]
    assert len(first) == 6 and all(case.expected for case in first)
    other = cases(JOINED.replace("120", "121"), SCHEMA)
    assert [case.image for case in other] != [case.image for case in first]


def test_rows_follow_keys_and_literals() -> None:
    for case in cases(JOINED, SCHEMA):
        held = result(case.image, "SELECT COUNT(*), COUNT(DISTINCT Harbour_ID) FROM harbour")
        assert held and held[0][0] == held[0][1] >= 12
        assert result(case.image, "SELECT * FROM ferry WHERE Home NOT IN (SELECT Harbour_ID FROM harbour)") == []
        assert result(case.image, "SELECT DISTINCT typeof(Built_Year) FROM ferry") == [("text",)]
        assert result(case.image, "SELECT 1 FROM harbour WHERE Country = 'Norway' LIMIT 1") == [(1,)]
        assert result(case.image, "SELECT 1 FROM harbour WHERE Country LIKE '%norway%' AND Country != 'Norway' LIMIT 1")
        assert result(case.image, "SELECT 1 FROM ferry WHERE Name IS NULL") == []


@pytest.mark.parametrize(
    ("query", "schema", "dialect"),
    [
        (JOINED, "", "sqlite"),
        (JOINED, "CREATE TABLE ferry (", "sqlite"),
        (JOINED, "CREATE VIEW ferry AS SELECT 1", ""),
        (JOINED, SCHEMA, "bigquery"),
        (JOINED, SCHEMA, "snowflake"),
        ("SELECT ARRAY_AGG(Name) FROM ferry", SCHEMA, ""),
        ("SELECT Name FROM ferry WHERE 1 = 2", SCHEMA, "sqlite"),
        ("SELECT 1; SELECT 2", SCHEMA, "sqlite"),
        ("DROP TABLE ferry", SCHEMA, "sqlite"),
    ],
)
def test_where_execution_is_not_possible_the_text_counts(query: str, schema: str, dialect: str) -> None:
    known = reference(query, schema, dialect)
    assert SCORER.item(query.lower().replace("'norway'", "'Norway'") + ";", known) == 1.0
    assert SCORER.item(query + " LIMIT 5000", known) == 0.0
    assert SCORER.corpus([query], [known]) == {"exact_match": 1.0, "executable": 0.0}


def test_scores_of_many_answers() -> None:
    references = [reference(GROUPED), reference(GROUPED), reference(GROUPED, dialect="bigquery"), "", reference("")]
    answers = [GROUPED.replace("*", "1"), "SELECT 1", GROUPED, "SELECT 1", "SELECT 1"]
    found = SCORER.corpus(answers, references)
    assert found == pytest.approx({"exact_match": 1 / 3, "executable": 2 / 3})
    assert [SCORER.item(*pair) for pair in zip(answers, references)] == [1.0, 0.0, 1.0, None, None]
    assert [SCORER.item("SELECT 1", nothing) for nothing in ("", reference(" "))] == [None, None]
    assert SCORER.corpus([], []) == {}


def test_results_are_compared_as_multisets_or_in_order() -> None:
    rows = [(1, "a"), (2, None), (2, None)]
    assert equal_results(rows[::-1], rows, ordered=False) and not equal_results(rows[::-1], rows, ordered=True)
    assert not equal_results(rows[:2], rows, ordered=False) and not equal_results(
        [*rows[:2], rows[0]], rows, ordered=False
    )
    assert equal_results([(0.1 + 0.2,)], [(0.3,)], ordered=True) and equal_results([(2.0,)], [(2,)], ordered=True)
    assert not equal_results([("2",)], [(2,)], ordered=True) and not equal_results(None, [], ordered=False)


def test_schemas_as_lists_of_names_are_read() -> None:
    text = (
        "-- two tables\nCREATE TABLE a (\n  index int,\n  18_49_share text,\n  ratings_(millions) REAL,\n"
        "  PRIMARY KEY (index, 18_49_share)\n);\nCREATE TABLE sqlite_sequence (name, seq);\nINSERT INTO a VALUES (1);\n"
        "CREATE TABLE B (Id INTEGER PRIMARY KEY, Up int REFERENCES B, x int REFERENCES missing(y), "
        "z REFERENCES b(none))"
    )
    assert read_schema(text) == {}  # the key's names lack their quotes
    tables = read_schema(text.replace("(index, 18_49_share)", '("index", "18_49_share")'))
    assert [(table.name, table.key, dict(table.parents)) for table in tables.values()] == [
        ("a", ("index", "18_49_share"), {}),
        ("B", ("id",), {"up": ("b", "id")}),
    ]
    assert [column.name for column in tables["a"].columns] == ["index", "18_49_share", "ratings_(millions)"]
    kinds = {"number": "NUMERIC", "time": "NUMERIC", "boolean": "NUMERIC", "others": "NUMERIC", "": "BLOB"}
    kinds |= {"varchar(20)": "TEXT", "BIGINT": "INTEGER", "double": "REAL", "FLOAT": "REAL", "blob": "BLOB"}
    assert {kind: affinity(kind) for kind in kinds} == kinds


def test_text_is_cut_into_statements() -> None:
    assert statements("SELECT ';' ; -- x; y\n/* ; */ SELECT \"a;\";;") == ["SELECT ';'", 'SELECT "a;"']
    assert statements(" ; ") == [] and statements("SELECT 'open; x") == ["SELECT 'open", "x"]
    assert sql_of_answer("x\n```\nSELECT 1\n```") == "SELECT 1\n"
    assert is_ordered("SELECT a FROM t ORDER  BY a") and is_ordered("SELECT a FROM (SELECT 1) order by a LIMIT 1")
    assert not is_ordered("SELECT a FROM (SELECT a FROM t ORDER BY a)") and not is_ordered("SELECT 'ORDER BY'")


def test_references_that_go_in_a_circle_are_filled() -> None:
    schema = "CREATE TABLE a (x int REFERENCES b(y)); CREATE TABLE b (y int REFERENCES a(x), z int)"
    query = "SELECT COUNT(*) FROM a JOIN b ON a.x = b.y"
    assert SCORER.item(query, reference(query, schema)) == 1.0
    assert SCORER.item("SELECT COUNT(*) FROM a", reference(query, schema)) == 0.0


def test_a_result_that_sql_leaves_open_is_avoided() -> None:
    """Of equal rows LIMIT may keep any: the databases have none, and a query that asks otherwise agrees."""
    for case in cases(TOP, SCHEMA):
        most = result(case.image, "SELECT COUNT(DISTINCT Name) FROM ferry WHERE Seats = (SELECT MAX(Seats) FROM ferry)")
        assert most == [(1,)]


def test_an_image_stays_as_it_is() -> None:
    (case, *_) = cases(GROUPED, SCHEMA)
    assert result(case.image, "DELETE FROM ferry") is None
    with sqlite3.connect(":memory:") as database:
        database.deserialize(case.image)
        assert database.execute(GROUPED).fetchall() == case.expected
