"""Options belong to their drafter, and say what is wrong with them; a module says what it needs."""

from types import SimpleNamespace

import pytest
from tests.helpers.shipped import model

import outpace
from outpace import drafters, verify
from outpace.core.errors import ParameterError, PluginError
from outpace.core.protocols import Requirements
from outpace.core.registry import Registry


def test_each_drafter_gets_its_own_options():
    options = {"eagle": {"heads": "A"}, "medusa": {"heads": "B", "static": True}}
    configs = drafters.configure(["eagle", "medusa", "lookup"], options, gamma=5)
    assert (configs["eagle"].heads, configs["medusa"].heads, configs["medusa"].static) == ("A", "B", True)
    assert configs["lookup"] == drafters.module("lookup").Config(gamma=5)


def test_a_hybrids_members_get_their_own_options():
    options = {"hybrid": {"members": "lookup, recycle"}, "lookup": {"min_match": 1}, "recycle": {"top": 3}}
    [hybrid] = drafters.configure(["hybrid"], options, gamma=4).values()
    assert hybrid.gamma == 4 and set(hybrid.options) == {"lookup", "recycle"}
    engine = outpace.load(model("tiny"), drafter="hybrid", drafter_options=options)
    members = dict(engine._drafters["hybrid"]._members)
    assert members["lookup"]._config.min_match == 1 and members["recycle"]._config.top == 3
    with pytest.raises(ParameterError, match="drafter 'recycle' has no option 'width'"):
        outpace.load(model("tiny"), drafter="hybrid", drafter_options=options | {"recycle": {"width": 1}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookup": {"depth": 3}}, "drafter 'lookup' has no option 'depth'; it has .*min_match"),
        ({"lookup": {"min_match": "2"}}, "drafter 'lookup' takes a value of type int for 'min_match', not '2'"),
        ({"lookup": {"min_match": True}}, "type int for 'min_match', not True"),
        ({"lookup": {"corpus": 1}}, "type str for 'corpus', not 1"),
        ({"draft_model": {"lookup": 1}}, "drafter 'draft_model' takes a value of type bool for 'lookup', not 1"),
        ({"recycle": {"top": 2}}, "top belongs to the drafter 'recycle', but lookup, draft_model is used"),
        ({"nobody": {"top": 2}}, "drafter must be one of .*lookup.*, not 'nobody'"),
        ({"lookup": {"options": {}}}, "has no option 'options'"),
    ],
)
def test_wrong_options_name_the_drafter_and_what_is_allowed(options, message):
    with pytest.raises(ParameterError, match=message):
        drafters.configure(["lookup", "draft_model"], options)


def test_a_whole_number_is_a_float_but_no_bool_is():
    [config] = drafters.configure(["lookup"], {"lookup": {"stop_below": 0}}).values()
    assert config.stop_below == 0
    with pytest.raises(ParameterError, match="type float"):
        drafters.configure(["lookup"], {"lookup": {"stop_below": False}})


def test_what_a_hybrid_requires_is_what_its_members_do():
    def needed(members):
        configs = drafters.configure(["hybrid"], {"hybrid": {"members": members}})
        return drafters.requirements(configs)["hybrid"]

    assert needed("recycle,lookup") == Requirements()
    assert needed("lookup,draft_model") == Requirements(draft_model=True)
    assert needed("lookup,intersect") == Requirements(draft_model=True, same_vocabulary=False)
    assert needed("lookup,intersect,draft_model").same_vocabulary
    assert needed("lookup,medusa").torch


@pytest.mark.parametrize(
    ("part", "lacks"),
    [
        (SimpleNamespace(requires=len, create=len), "a Config that is a frozen dataclass"),
        (SimpleNamespace(Config=verify.module("typical").Config, requires=len, create=len), "a field gamma: int"),
        (SimpleNamespace(Config=drafters.module("none").Config), r"requires\(config\), and create\(config, parts\)"),
    ],
)
def test_a_module_that_does_not_keep_to_the_protocol_is_refused(part, lacks):
    registry = Registry(
        "drafter", "drafter", "tests.helpers", frozenset(), "no.group", lambda name, _: drafters._lacks(name, part)
    )
    with pytest.raises(PluginError, match=f"the drafter 'toys' lacks {lacks}"):
        registry.module("toys")


def test_a_rules_options():
    assert verify.rule("typical", {"epsilon": 0.5}).config == verify.module("typical").Config(0.5, 0.3)
    assert verify.rules({"typical": {"delta": 1}})["typical"].config.delta == 1
    assert [option.name for option in verify.options("typical")] == ["epsilon", "delta"] and not verify.options("match")
    for given, message in [
        ({"typical": {"epsilon": 2.0}}, "epsilon must lie in"),
        ({"typical": {"theta": 2.0}}, "rule 'typical' has no option 'theta'; it has delta, epsilon"),
        ({"match": {"theta": 2.0}}, "rule 'match' has no options"),
        ({"nobody": {}}, "accept must be one of"),
    ]:
        with pytest.raises(ParameterError, match=message):
            verify.rules(given)
