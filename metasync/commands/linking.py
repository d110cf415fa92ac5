"""The dialogue that links an account, for `auth` and for the guided start."""

from __future__ import annotations

import os
import sys
from typing import Final

from metasync.backends._shared.logins import kept, linking, oauth
from metasync.backends._shared.logins.oauth import Client, Provider, Tokens
from metasync.errors import MetaSyncError, RefusedError, UsageError
from metasync.terminal import prompt

_TRIES: Final = 3
_ID_CHARS_MAX: Final = 256

REGISTER: Final[dict[str, tuple[str, ...]]] = {
    "dropbox": (
        "Open {app} and choose Create app.",
        'Choose "Scoped access", then "App folder": the app sees a folder of its own and nothing else. Name it.',
        'On the tab "Permissions", tick files.metadata.read, files.metadata.write, files.content.read and'
        " files.content.write; then Submit.",
        'On the tab "Settings", add the redirect URI {redirect}',
        'The client id is the "App key" on that tab. No secret is needed.',
    ),
    "onedrive": (
        "Open {app} and choose New registration.",
        'Give it a name. Supported account types: "Accounts in any organizational directory and personal Microsoft'
        ' accounts".',
        'Redirect URI: "Public client/native (mobile & desktop)", http://localhost; then Register.',
        'Under "Authentication", set "Allow public client flows" to Yes.',
        'The client id is the "Application (client) ID" under "Overview". No secret is needed.',
    ),
    "box": (
        "Open {app} and choose Create Platform App, then Custom App.",
        'Give it a name, and choose "User Authentication (OAuth 2.0)".',
        'On the tab "Configuration", add the redirect URI {redirect}',
        'There, too, tick "Read all files and folders stored in Box" and "Write all files and folders stored in Box";'
        " then Save Changes.",
        'The client id and the client secret are under "OAuth 2.0 Credentials" on that tab.',
    ),
    "gdrive": (
        "Open https://console.cloud.google.com/projectcreate and make a project.",
        "Open https://console.cloud.google.com/apis/library/drive.googleapis.com and choose Enable.",
        'Open https://console.cloud.google.com/auth/overview and choose Get started. Audience: "External".',
        'Under "Audience", choose Publish app: as long as it is in "Testing", a login ends after 7 days.',
        'Open {app} and choose Create client, with the type "Desktop app".',
        "The client id and the client secret are shown then.",
    ),
}
"""How an app is registered with each provider: the words of its own pages."""


def provider_named(name: str) -> Provider:
    """`UsageError` for a provider whose accounts cannot be linked."""
    provider = oauth.PROVIDERS.get(name)
    if provider is None:
        raise UsageError(
            f"no account of {name[:40]!r} can be linked", next_step=f"There are: {', '.join(sorted(oauth.PROVIDERS))}."
        )
    return provider


def label_of(provider: Provider, account: str | None) -> str:
    """The label of the account to be linked or unlinked: the given one, else the only one's, else `default`."""
    if account is not None:
        return kept.check_label(account)
    found = kept.accounts(provider.name)
    if len(found) > 1:
        raise UsageError(
            f"several accounts of {provider.title} are linked: {', '.join(found)}",
            next_step="Say which one with --account NAME; a new name links another one.",
        )
    return found[0] if found else kept.DEFAULT


def has_browser() -> bool:
    """Whether a browser can be opened here: not without a screen, where one in the terminal would come up."""
    return bool(
        sys.platform == "darwin"
        or os.environ.get("BROWSER")
        or os.environ.get("DISPLAY")
        or os.environ.get("WAYLAND_DISPLAY")
    )


def link(provider: Provider, label: str, *, browser: bool, new_app: bool = False) -> kept.Place:
    """Links an account, and keeps its login. -> where.

    `browser`: open one on this machine. `new_app`: ask for another app than the one that is known.
    """
    place = kept.Place(provider, label)
    client = _client(provider, label, new_app=new_app)
    try:
        tokens = _tokens(place, client, browser=browser)
    except MetaSyncError as error:
        raise place.named(error) from None
    return linking.keep(provider, label, client, tokens)


def _tokens(place: kept.Place, client: Client, *, browser: bool) -> Tokens:
    provider = place.provider
    if browser and has_browser():
        return _by_browser(place, client)
    if not prompt.somebody():
        raise UsageError(
            f"an account of {provider.title} cannot be linked here: there is no browser, and no terminal to ask on",
            next_step=f"On a terminal, {provider.step.lower()} --no-browser",
        )
    if provider.device:
        return _by_device(provider, client)
    return _by_hand(provider, client)


def _client(provider: Provider, label: str, *, new_app: bool) -> Client:
    """The app: the one that came with this program, or the one of an account that is linked, or a new one."""
    shipped = oauth.shipped_client(provider.name)
    if shipped is not None and not new_app:
        return shipped
    if not new_app:
        for other in (label, *kept.accounts(provider.name)):
            try:
                return kept.Place(provider, other).read().client
            except RefusedError:  # none there, or it is damaged
                continue
    if not prompt.somebody():
        variable = f"METASYNC_{provider.name.upper()}_CLIENT"
        raise UsageError(
            f"no app is known that may ask {provider.title} for a login, and there is no terminal to ask on",
            next_step=f"Set {variable}_ID{f' and {variable}_SECRET' if provider.has_secret else ''}, or run this on a"
            " terminal.",
        )
    prompt.tell(
        f"{provider.title} gives logins to registered apps alone, and MetaSync brings none. Register one of your own;"
        " it takes a few minutes, once:",
        "",
        *_steps(provider),
        "",
    )
    client_id = _word("Client id")
    return Client(client_id, _word("Client secret", hidden=True) if provider.has_secret else "")


def _steps(provider: Provider) -> list[str]:
    redirect = provider.redirect
    lines = [step.format(app=provider.app, redirect=redirect) for step in REGISTER[provider.name]]
    return [f"  {number}. {line}" for number, line in enumerate(lines, start=1)]


def _word(what: str, *, hidden: bool = False) -> str:
    """A word without spaces, as ids and secrets are."""
    for _ in range(_TRIES):
        typed = (prompt.secret(what) if hidden else prompt.line(what)).strip()
        if typed.isascii() and typed.isprintable() and " " not in typed and 0 < len(typed) <= _ID_CHARS_MAX:
            return typed
        prompt.tell(f"That is no {what.lower()}: it is one word, of letters, digits and signs.")
    raise UsageError(f"no {what.lower()} was given")


def _by_browser(place: kept.Place, client: Client) -> Tokens:
    with linking.listening(place.provider, client) as listener:
        attempt = listener.attempt
        prompt.tell(
            "Log in and allow it in the browser. If none opens, open this address in one on this machine:",
            "",
            f"  {attempt.url}",
            "",
            # Named before anything failed, too: a starter such as xdg-open ends well or ill after it was started.
            f"With a browser on another machine alone: end this (Ctrl+C) and {place.step[0].lower()}{place.step[1:]}"
            " --no-browser",
        )
        if not _opened(attempt.url):
            prompt.tell("No browser could be started here.")
        return attempt.tokens(listener.code())


def _opened(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):  # BROWSER names what cannot be started
        return False


def _by_hand(provider: Provider, client: Client) -> Tokens:
    redirect = "" if provider.shows_code else provider.redirect.format(port=linking.PASTE_PORT)
    attempt = linking.begun(provider, client, redirect)
    prompt.tell("Open this address in a browser, on any machine, log in and allow it:", "", f"  {attempt.url}", "")
    what = "The code that it shows"
    if redirect:
        prompt.tell(
            f"The browser then goes to an address that begins with {redirect}, and finds nothing there. Copy that"
            " address from its address line at once: it holds for a short while.",
        )
        what = "The address"
    for left in reversed(range(_TRIES)):
        try:
            return attempt.tokens(attempt.pasted(prompt.line(what)))
        except UsageError as error:
            if not left:
                raise
            prompt.tell(f"{error.message[0].upper()}{error.message[1:]}. {error.next_step}")
    raise AssertionError


def _by_device(provider: Provider, client: Client) -> Tokens:
    code = oauth.device_code(provider, client)
    prompt.tell(f"On any machine, open {code.url} in a browser and type this code: {code.shown}", "Waiting for it ...")
    return linking.await_device(provider, client, code)
