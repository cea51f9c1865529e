"""The writer of tables: columns' ends, escapes, and the index."""

from __future__ import annotations

import pandas as pd

from ssd_bench import tables

FRAME = pd.DataFrame({"a|b": ["x|y", "1"], "n": ["1.5", "10.0"]})


def test_a_terminal_gets_columns() -> None:
    lines = tables.terminal(FRAME, right=["n"]).splitlines()
    assert lines == ["a|b       n", "-----  ----", "x|y     1.5", "1      10.0"]
    bare = FRAME.set_axis(["", ""], axis=1)
    assert tables.terminal(bare, ruled=False).splitlines() == ["x|y  1.5", "1    10.0"]
    assert tables.terminal(pd.DataFrame({"a": ["one two"]}), wrap=[3]).splitlines()[2:] == ["one", "two"]
    assert tables.terminal(FRAME.head(0)).splitlines()[0].split() == ["a|b", "n"]


def test_an_index_with_a_name_stands_in_front() -> None:
    indexed = FRAME.set_index("a|b")
    assert tables.terminal(indexed) == tables.terminal(FRAME) and tables.markdown(indexed) == tables.markdown(FRAME)
    assert r"x\|y" in tables.markdown(indexed) and r"| 10.0 |" in tables.markdown(indexed)
    assert tables.markdown(pd.DataFrame({"a": ["one\ntwo"]})).count("\n") == 2, "a row is one line"
    assert tables.csv(FRAME) == "a|b,n\nx|y,1.5\n1,10.0\n"


def test_latex_keeps_its_own_signs() -> None:
    odd = pd.DataFrame({"50 % of $x_1 & {a} [b]": [r"a\b~c^d", "<e>"], "§": ["[–", "|"]})
    lines = tables.latex(odd, "1 & [2]", "tab:odd").splitlines()
    assert r"\caption{1 \& {[}2{]}}" in lines and r"\label{tab:odd}" in lines
    assert r"50 \% of \$x\_1 \& \{a\} {[}b{]} & \S{} \\" in lines
    assert r"a\textbackslash b\textasciitilde c\textasciicircum d & {[}-- \\" in lines
    assert r"\textless{}e\textgreater{} & \textbar{} \\" in lines


def test_html_is_escaped_and_heads_say_of_what_they_are() -> None:
    shown = tables.html(pd.DataFrame({"a & b": ["<i>"]}, pd.Index(["'x'"], name='"')), "1 < 2", "wide")
    assert "<i>" not in shown and '<table class="wide"><caption class="hidden">1 &lt; 2</caption>' in shown
    assert '<th scope="col">&#34;</th><th scope="col">a &amp; b</th>' in shown
    assert '<tr><th scope="row">&#39;x&#39;</th><td>&lt;i&gt;</td></tr>' in shown
    index = pd.MultiIndex.from_tuples([("g", "1"), ("g", "2"), ("h", "1")], names=["group", "part"])
    grouped = tables.html(pd.DataFrame({"n": [1, 2, 3]}, index), "groups")
    assert grouped.count("<tbody>") == 2
    assert '<th scope="rowgroup" rowspan="2">g</th><th scope="row">1</th><td>1</td>' in grouped
