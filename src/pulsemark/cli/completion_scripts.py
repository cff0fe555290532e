"""The scripts of `pulsemark completion`, one function for each shell.

Each script walks the words before the cursor: a word that is a command (or an action) of the place
where it stands leads one step down; the value of an option is skipped.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator

from .word_tree import Option, Words

__all__ = ["SHELLS"]


def bash(tree: Iterable[Words]) -> str:
    """For bash 4 or newer, with or without the package bash-completion."""
    places = list(tree)
    cases = "\n".join(_bash_place(words) for words in places)
    return f"""# pulsemark completion for bash; made by `pulsemark completion bash`
_pulsemark() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="" place="" word="" value_of=""
    local commands="" options="" with_value="" words="" files="" index
    COMPREPLY=()
    _pulsemark_place ""
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${{COMP_WORDS[index]}}"
        previous="$value_of"
        value_of=""
        if [[ -n "$previous" ]]; then continue; fi
        if [[ " $with_value " == *" $word "* ]]; then value_of="$word"; continue; fi
        if [[ " $commands " == *" $word "* ]]; then
            place="${{place:+$place }}$word"
            _pulsemark_place "$place"
        fi
    done
    if [[ -n "$value_of" ]]; then
        words=""; files=""
        _pulsemark_value "$place" "$value_of"
    elif [[ "$current" == -* ]]; then
        words="$options"; files=""
    else
        words="$commands $words"
    fi
    if [[ -n "${{words// /}}" ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    fi
    if [[ -n "$files" ]]; then
        compopt -o filenames 2> /dev/null
        local found
        while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen -f -- "$current")
    fi
}}

_pulsemark_place() {{
    case "$1" in
{cases}
    esac
}}

_pulsemark_value() {{
    case "$1:$2" in
{chr(10).join(_bash_values(places))}
    esac
}}

complete -F _pulsemark pulsemark
"""


def _names(options: Iterable[Option], *, with_value: bool = False) -> str:
    chosen = (each for each in options if each.takes_value or not with_value)
    return " ".join(name for each in chosen for name in each.names)


def _bash_place(words: Words) -> str:
    arguments = " ".join(choice for each in words.arguments for choice in each.choices)
    files = "yes" if any(each.is_path for each in words.arguments) else ""
    return (
        f"        {_quoted(' '.join(words.path))})\n"
        f"            commands={_quoted(' '.join(words.commands))}\n"
        f"            options={_quoted(_names(words.options))}\n"
        f"            with_value={_quoted(_names(words.options, with_value=True))}\n"
        f"            words={_quoted(arguments)} files={_quoted(files)} ;;"
    )


def _bash_values(places: Iterable[Words]) -> Iterator[str]:
    for words in places:
        for each in words.options:
            if each.choices or each.is_path:
                patterns = "|".join(_quoted(f"{' '.join(words.path)}:{n}") for n in each.names)
                files = "files=yes" if each.is_path else ""
                yield f"        {patterns}) words={_quoted(' '.join(each.choices))} {files};;"


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else '""'


# -- zsh ------------------------------------------------------------------------------------------


def zsh(tree: Iterable[Words]) -> str:
    """For zsh 5; with what each command and option does."""
    places = list(tree)
    cases = "\n".join(_zsh_place(words) for words in places)
    return f"""#compdef pulsemark
# pulsemark completion for zsh; made by `pulsemark completion zsh`
_pulsemark() {{
    local place="" word="" value_of="" index
    local -a commands options with_value values
    local files=""
    _pulsemark_place ""
    for ((index = 2; index < CURRENT; index++)); do
        word="${{words[index]}}"
        if [[ -n "$value_of" ]]; then value_of=""; continue; fi
        if (( ${{with_value[(Ie)$word]}} )); then value_of="$word"; continue; fi
        if (( ${{commands[(I)$word:*]}} )); then
            place="${{place:+$place }}$word"
            _pulsemark_place "$place"
        fi
    done
    if [[ -n "$value_of" ]]; then
        values=() files=""
        _pulsemark_value "$place" "$value_of"
        (( $#values )) && compadd -a values
        [[ -n "$files" ]] && _files
    elif [[ "$PREFIX" == -* ]]; then
        _describe -o option options
    else
        (( $#commands )) && _describe command commands
        (( $#values )) && compadd -a values
        [[ -n "$files" ]] && _files
    fi
    return 0
}}

_pulsemark_place() {{
    case "$1" in
{cases}
    esac
}}

_pulsemark_value() {{
    case "$1:$2" in
{chr(10).join(_zsh_values(places))}
    esac
}}

if [[ "${{(%):-%N}}" == _pulsemark ]]; then _pulsemark "$@"; else compdef _pulsemark pulsemark; fi
"""


def _described(name: str, text: str) -> str:
    return _quoted(f"{name.replace(':', chr(92) + ':')}:{text}")


def _zsh_place(words: Words) -> str:
    commands = " ".join(_described(name, text) for name, text in words.commands.items())
    options = " ".join(_described(n, each.help) for each in words.options for n in each.names)
    choices = " ".join(_quoted(c) for each in words.arguments for c in each.choices)
    files = "yes" if any(each.is_path for each in words.arguments) else ""
    return (
        f"        {_quoted(' '.join(words.path))})\n"
        f"            commands=({commands})\n"
        f"            options=({options})\n"
        f"            with_value=({_names(words.options, with_value=True)})\n"
        f"            values=({choices}) files={_quoted(files)} ;;"
    )


def _zsh_values(places: Iterable[Words]) -> Iterator[str]:
    for words in places:
        for each in words.options:
            if each.choices or each.is_path:
                patterns = "|".join(_quoted(f"{' '.join(words.path)}:{n}") for n in each.names)
                choices = " ".join(_quoted(choice) for choice in each.choices)
                files = "files=yes" if each.is_path else ""
                yield f"        {patterns}) values=({choices}) {files};;"


# -- fish -----------------------------------------------------------------------------------------


def fish(tree: Iterable[Words]) -> str:
    """For fish 3; with what each command and option does."""
    places = list(tree)
    known = "\n".join(_fish_place(words) for words in places if words.commands)
    valued = sorted({n for w in places for o in w.options if o.takes_value for n in o.names})
    lines = [line for words in places for line in _fish_lines(words)]
    return f"""# pulsemark completion for fish; made by `pulsemark completion fish`
function __pulsemark_commands
    switch "$argv"
{known}
    end
end

function __pulsemark_at
    set -l place
    set -l skip 0
    set -l with_value {" ".join(valued)}
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
        else if contains -- $word $with_value
            set skip 1
        else if contains -- $word (__pulsemark_commands $place)
            set -a place $word
        end
    end
    test "$place" = "$argv"
end

complete -c pulsemark -f
{chr(10).join(lines)}
"""


def _fish_place(words: Words) -> str:
    names = " ".join(words.commands)
    return f"        case {_fish(' '.join(words.path))}\n            string split ' ' '{names}'"


def _fish_lines(words: Words) -> Iterator[str]:
    begin = f"complete -c pulsemark -n {_fish('__pulsemark_at ' + ' '.join(words.path))}"
    for name, text in words.commands.items():
        yield f"{begin} -a {_fish(name)} -d {_fish(text)}"
    for each in words.arguments:
        if each.choices:
            yield f"{begin} -a {_fish(' '.join(each.choices))}"
        if each.is_path:
            yield f"{begin} -F"
    for each in words.options:
        parts = [begin]
        for name in each.names:
            kind = "-l" if name.startswith("--") else "-s" if len(name) == 2 else "-o"
            parts.append(f"{kind} {_fish(name.lstrip('-'))}")
        if each.takes_value:
            parts.append("-r" if each.is_path else "-x")
        if each.choices:
            parts.append(f"-a {_fish(' '.join(each.choices))}")
        if each.is_path:
            parts.append("-F")
        yield f"{' '.join(parts)} -d {_fish(each.help)}"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[Iterable[Words]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
