import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from proxy.tokens.exact.template import ChatTemplate, TemplateFailed, load_template

HELLO = [{"role": "user", "content": "Hello"}]


def rendered(source: str, **options: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": {"content": "</s>"}}).render(
        HELLO, None, options
    )


def test_messages_special_tokens_and_the_opening_are_there() -> None:
    source = (
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}"
    )

    assert rendered(source) == "<s>Hello</s>>"


def test_blocks_leave_no_lines_behind() -> None:
    assert rendered("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_json_is_printed_with_spaces_and_as_it_is() -> None:
    assert rendered("{{ {'a': ['ü<', 1]} | tojson }}") == '{"a": ["ü<", 1]}'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_the_extras_of_transformers_work() -> None:
    assert rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert rendered("{% generation %}x{{ messages[0].content }}{% endgeneration %}") == "xHello"
    assert rendered("{{ strftime_now('%Y') }}") == str(datetime.now().year)  # noqa: DTZ005


def test_options_of_the_request_are_variables() -> None:
    assert (
        rendered("{{ enable_thinking }}{{ documents }}{{ tools }}", enable_thinking=False) == "FalseNoneNone"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('only user and assistant') }}",
        "{{ 'x' + {} }}",
        "{{ undefined.attribute }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ range(10000000) | list }}",
        "{{ messages.append(1) }}",
    ],
)
def test_what_a_template_may_not_do_fails(source: str) -> None:
    with pytest.raises(TemplateFailed):
        rendered(source)


def test_a_file_that_is_no_template_fails_at_once() -> None:
    with pytest.raises(TemplateFailed, match="TemplateSyntaxError"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize(
    ("name", "contents", "parts"),
    [
        ("m", None, False),
        ("message", "message['content']", True),
        ("m", "m.content", True),
        ("msg", "msg.content[1:]", True),
        ("message", "message.content | list", True),
        ("other", "other.content", False),
        ("message", "message.tool_calls", False),
    ],
)
def test_whether_contents_are_lists_of_parts_is_read_from_the_template(
    name: str, contents: str | None, parts: bool
) -> None:
    inner = "" if contents is None else f"{{% for part in {contents} %}}{{{{ part }}}}{{% endfor %}}"

    assert ChatTemplate(f"{{% for {name} in messages %}}{inner}{{% endfor %}}", {}).parts is parts


def test_a_template_that_speaks_of_media_takes_parts() -> None:
    assert ChatTemplate("{{ messages }}{# <image> #}", {}).parts


@pytest.mark.parametrize(
    ("source", "reorders"),
    [
        ("{{ messages[0].content }}", False),
        ("{{ messages[0].tool_call_id }}", True),
        ("{{ messages[0]['tool_call_id'] }}", True),
        ("{{ messages[0].get('tool_call_id') }}", True),
        ("{{ messages | map(attribute='tool_call_id') | list }}", True),
        ("{{ messages | selectattr('tool_call_id') | list }}", True),
    ],
)
def test_whether_results_follow_their_calls_is_read_from_the_template(source: str, reorders: bool) -> None:
    assert ChatTemplate(source, {}).reorders is reorders


def test_a_templates_own_file_comes_before_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": "configured"}
    assert _render(tmp_path, config) == "configured"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
    assert _render(tmp_path, config) == "of the processor"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert _render(tmp_path, config) == "own file"
    (tmp_path / "override.jinja").write_text("\nover\\nride\n")
    assert _render(tmp_path, config, tmp_path / "override.jinja") == "over\nride"


def test_of_several_named_templates_the_first_counts(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "first"}, {"name": "default", "template": "second"}]

    assert _render(tmp_path, {"chat_template": named}) == "first"
    assert load_template(tmp_path, {}, None) is None


def _render(directory: Path, config: dict[str, Any], override: Path | None = None) -> str:
    template = load_template(directory, config, override)
    assert template is not None
    return template.render(HELLO, None, {})
