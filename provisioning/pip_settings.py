"""The user's settings of pip in uv's words, and of uv in pip's: neither tool reads the other's.

Standard library only: noxfile.py imports this module before any environment exists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

INDEXES = ("index-url", "extra-index-url", "find-links")

_SAME_IN_UV = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("ALL_PROXY",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "keyring-provider": ("UV_KEYRING_PROVIDER",),
}
"""uv's variables for one of pip's settings, the one to set first."""


def read(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's settings from its configuration files and, above them, from PIP_* variables."""
    import configparser

    settings: dict[str, str] = {}
    for file in _files(environ):
        parser = configparser.RawConfigParser()
        parser.read(file, encoding="utf-8")
        for section in ("global", "install", "download"):
            if parser.has_section(section):
                settings.update((key.replace("_", "-"), value) for key, value in parser.items(section))
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            settings[name[len("PIP_") :].lower().replace("_", "-")] = value
    return settings


def uv_variables(environ: Mapping[str, str], *, portable: bool = False) -> dict[str, str]:
    """Variables to add to uv's environment. The user's own settings for uv stay.

    `portable` leaves out folders of this machine: they hold wheels of one platform, and a lock file that
    had only their hashes would serve no other. Where pip may use no index, they are all there is.
    """
    pip = read(environ)
    variables: dict[str, str] = {}
    for key, names in _SAME_IN_UV.items():
        values = pip.get(key, "").split()
        if portable and key in INDEXES[1:] and not no_index(environ):
            values = [value for value in values if value.startswith(("https:", "http:"))]
        if values and not any(environ.get(name) for name in names):
            variables[names[0]] = ("," if key == "find-links" else " ").join(values)
    if not environ.get("UV_INDEX_STRATEGY"):
        # pip takes the best version of all indexes; uv by default only asks the first index with the package.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables


def uv_config_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which uv reads the user's or the machine's configuration, and not the one of the
    project in the current folder: its `[tool.uv]` is about its own packages."""
    if environ.get("UV_CONFIG_FILE") or environ.get("UV_NO_CONFIG"):
        return {}
    home = Path(environ.get("HOME", "~")).expanduser()
    everybodys = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    folders = [environ.get("XDG_CONFIG_HOME") or home / ".config", *everybodys, "/etc"]
    files = (Path(folder, "uv", "uv.toml") for folder in folders)
    own = next((file for file in files if file.is_file()), None)
    return {"UV_CONFIG_FILE": str(own)} if own else {"UV_NO_CONFIG": "1"}


def has_several_indexes(environ: Mapping[str, str]) -> bool:
    """Whether packages may come from more than one index."""
    variables = {**environ, **uv_variables(environ)}
    return any(variables.get(name) for name in _SAME_IN_UV["extra-index-url"])


def uv_flags(environ: Mapping[str, str]) -> list[str]:
    """uv has no variable for pip's `no-index`."""
    return ["--no-index"] if no_index(environ) else []


def no_index(environ: Mapping[str, str]) -> bool:
    return read(environ).get("no-index", "").lower() in ("1", "true", "yes", "on")


def pip_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to pip's environment if the user has set an index for uv only."""
    pip = read(environ)
    if any(pip.get(key) for key in INDEXES):
        return {}
    addresses = {key: next(filter(None, map(environ.get, _SAME_IN_UV[key])), "") for key in INDEXES}
    return {
        f"PIP_{key.upper().replace('-', '_')}": " ".join(value.replace(",", " ").split())
        for key, value in addresses.items()
        if value
    }


def add_credentials(url: str, environ: Mapping[str, str]) -> str:
    """The address of a file with the user and password that the settings have for its host.

    pip's report leaves them out.
    """
    parts = urlsplit(url)
    settings = {**environ, **pip_variables(environ)}
    for index in " ".join(read(settings).get(key, "") for key in INDEXES).split():
        user, at, host = urlsplit(index).netloc.rpartition("@")
        if at and (urlsplit(index).scheme, host) == (parts.scheme, parts.netloc):
            return urlunsplit(parts._replace(netloc=f"{user}@{host}"))
    return url


def _files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, the strongest last."""
    path = environ.get("PIP_CONFIG_FILE", "")
    if path == os.devnull:
        return []
    home = Path(environ.get("HOME", "~")).expanduser()
    everybodys = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    files = [Path(folder, "pip", "pip.conf") for folder in everybodys.split(":")] + [Path("/etc/pip.conf")]
    if not (path and Path(path).exists()):
        own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        files += [home / ".pip" / "pip.conf", own / "pip" / "pip.conf"]
    return [*files, Path(sys.prefix) / "pip.conf", *([Path(path)] if path else [])]
