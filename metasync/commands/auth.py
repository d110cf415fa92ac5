"""`auth`: links accounts of Dropbox, OneDrive, Box and Google Drive to this device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from metasync.errors import RefusedError, UsageError
from metasync.terminal.console import Console, Options, common

if TYPE_CHECKING:  # asking for help, or completing a word, loads no HTTP
    from metasync.backends._shared.logins.kept import Place
    from metasync.reports.accounts import Account

PROVIDERS = ("dropbox", "onedrive", "box", "gdrive")


@click.command()
@click.argument("provider", required=False, metavar="[PROVIDER]", type=click.Choice(PROVIDERS))
@click.option("--account", default=None, metavar="NAME", help="A label of yours, where several accounts are linked.")
@click.option("--no-browser", is_flag=True, help="Open no browser here: the code comes from one on any machine.")
@click.option("--new-app", is_flag=True, help="Ask for another app than the one that is known.")
@click.option("--list", "listing", is_flag=True, help="List the linked accounts.")
@click.option("--remove", is_flag=True, help="Unlink an account, here and at the provider.")
@common
@click.pass_obj
def auth(
    options: Options,
    provider: str | None,
    account: str | None,
    no_browser: bool,
    new_app: bool,
    listing: bool,
    remove: bool,
) -> None:
    """Links an account of a provider to this device.

    PROVIDER is dropbox, onedrive, box or gdrive. Opens a browser, where you log in and allow it; the login stays on
    this device, in the system's keyring or in a file of yours alone. The first time you register an app of your own
    with the provider, and are led through it.

    With several accounts each has a label, and a URL says which one it means: dropbox:/metasync?account=work. Without
    a label it means the account that is called default, else the only one.

    \b
    Example:
      metasync auth dropbox
      metasync auth box --account work --no-browser
      metasync auth --list
      metasync auth dropbox --remove
    """
    console = Console(options)
    if listing or provider is None:
        if provider is not None or remove or account is not None or new_app or no_browser or not listing:
            raise UsageError(
                "--list stands alone" if listing else "no provider was named",
                next_step=f"Run: metasync auth PROVIDER (one of {', '.join(PROVIDERS)}), or: metasync auth --list",
            )
        _list(console)
    from metasync.backends._shared.logins.kept import Place
    from metasync.backends._shared.logins.linking import unlink
    from metasync.backends.registry import check_installed
    from metasync.commands import linking
    from metasync.reports.accounts import AuthReport
    from metasync.terminal import by_daemon

    known = linking.provider_named(provider or "")
    label = linking.label_of(known, account)
    which = f"the account of {known.title}" if label == "default" else f"the account {label} of {known.title}"
    if remove:
        place = Place(known, label)
        if not place.path.exists():
            raise RefusedError(
                f"no account of {known.title} is linked as {label}", next_step="See: metasync auth --list"
            )
        told = _account(place)
        revoked = unlink(place)
        lines = [f"Unlinked {which}: its login is gone from this device."]
        lines.append(
            f"{known.title} was told: the login opens nothing any more."
            if revoked
            else f"{known.title} was not told. Remove the app there, too: {known.leave}"
        )
        console.report("auth", lines, AuthReport((told,), revoked))
    check_installed(known.name)
    place = linking.link(known, label, browser=not no_browser, new_app=new_app)
    by_daemon.go_on()
    told = _account(place)
    suffix = "" if label == "default" else f"?account={label}"
    lines = [
        f"Linked {which}. Its login is in {told.kept}.",
        f"Its URLs are {known.name}:/FOLDER{suffix}, such as {known.name}:/metasync{suffix}",
    ]
    console.report("auth", lines, AuthReport((told,)))


def _list(console: Console) -> NoReturn:
    from metasync.backends._shared.logins import kept, oauth
    from metasync.reports.accounts import AuthReport

    places = [kept.Place(p, label) for p in oauth.PROVIDERS.values() for label in kept.accounts(p.name)]
    found = [_account(place) for place in places]
    lines = [f"{a.provider}  {a.account}  {a.problem or f'in {a.kept}'}" for a in found]
    console.report("auth", lines or ["No account is linked. Link one: metasync auth PROVIDER"], AuthReport((*found,)))


def _account(place: Place) -> Account:
    from metasync.reports.accounts import Account

    where = place.kept_in()
    try:
        since_ns = int(place.read().linked_at * 1e9)
    except RefusedError as error:
        return Account(place.provider.name, place.account, where, problem=error.message)
    return Account(place.provider.name, place.account, where, since_ns)
