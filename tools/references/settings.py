"""docs/settings.md: every setting of a broker, with its names, its default and its comment."""

from __future__ import annotations

from pulsemark.broker.configuration.reference import settings_table

__all__ = ["settings_page"]

INTRODUCTION = """\
# Settings

Every setting of a broker, made from the code by `tools/write_references.py`; do not edit it.
[configuration.md](configuration.md) says where settings are set, and which place wins. The first
name is for a TOML file and the field of `BrokerConfig`, of its `store_options` or of its
`security`; in capitals after `PULSEMARK_` it is the variable of the environment. The second name is
for a `broker.conf`: a setting that Pulsar has, too, has Pulsar's name, unit and meaning there.
Defaults are in the first name's unit. Settings marked "reloaded" change on SIGHUP. An empty default
means: not set.

"""


def settings_page() -> str:
    """The page."""
    return INTRODUCTION + settings_table().replace("### ", "## ")
