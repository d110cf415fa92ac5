"""The page over HTTP: its files, what it asks for as JSON, downloads, and what it is told as it happens."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from metasync.dashboard import views
from metasync.dashboard.gate import Gate, TooMuchError
from metasync.dashboard.live import Live
from metasync.dashboard.page import Page, Shown
from metasync.errors import MetaSyncError

KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
DOORS: Final = {"/": "open.html", "/open.js": "open.js", "/page.css": "page.css", "/icon.svg": "icon.svg"}
"""Files for whoever has no cookie yet, by path. They hold no data."""
OPEN: Final = "/open"
FAILED: Final = 409  # what was asked for did not come about; the answer says why

_log = logging.getLogger("metasync")


def files() -> Mapping[str, Response]:
    """The page's files by name, read once."""
    folder = resources.files("metasync.dashboard") / "static"
    return {
        f.name: Response(f.read_bytes(), media_type=KINDS[f.name.rpartition(".")[2]])
        for f in folder.iterdir()
        if f.name.rpartition(".")[2] in KINDS
    }


def made(page: Page, live: Live, port: int) -> Gate:
    """The application, behind its gate."""
    held = files()

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        return held[name] if name in held else _gone()

    async def door(request: Request) -> Response:
        return held[DOORS[request.url.path]]

    async def opened(request: Request) -> Response:
        body = await _body(request)
        return gate.open(body.get("token") if isinstance(body, dict) else None)

    inside = [
        Route("/", file),
        Route("/static/{name}", file),
        Route("/api/events", live),
        Route("/api/{workspace}/file", _of(page, _download)),
        Route("/api/{workspace}/picture", _of(page, _picture)),
        Route("/api/{workspace}/do/{action}", _of(page, _do), methods=["POST"]),
        Route("/api/{workspace}/{view}", _of(page, _view)),
    ]
    doors: list[Route | Mount] = [Route(path, door) for path in DOORS]
    app = Starlette(
        routes=[*doors, Route(OPEN, opened, methods=["POST"]), Mount("/p/{secret}", routes=inside)],
        exception_handlers={
            MetaSyncError: _told,
            TooMuchError: _too_much,
            HTTPException: _no_such,
            Exception: _failed,
        },
    )
    gate = Gate(app, port, [*DOORS, OPEN])
    return gate


def _of(page: Page, do: Callable[[Shown, Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        return await do(page.one(request.path_params["workspace"]), request)

    return answered


async def _view(shown: Shown, request: Request) -> Response:
    """What the page looks at, by its name."""
    q = request.query_params
    match request.path_params["view"]:
        case "overview":
            found = await shown.overview()
        case "storage":
            found = await shown.storage()
        case "log":
            found = await shown.log(q.get("path"), counted=q.get("counted") == "yes")
        case "version":
            found = await shown.version(q.get("version", ""))
        case "files":
            found = await shown.files(q.get("version", "latest"), q.get("path", ""))
        case "conflicts":
            found = await shown.conflicts()
        case "conflict":
            found = await shown.conflict(q.get("copy", ""))
        case "devices":
            found = await shown.devices()
        case "settings":
            found = await shown.settings()
        case _:
            return _gone()
    return JSONResponse(found)


async def _do(shown: Shown, request: Request) -> Response:
    return JSONResponse(await shown.do(request.path_params["action"], await _body(request)))


async def _download(shown: Shown, request: Request) -> Response:
    """A file of a version, to be saved: no browser shows it as a page of this origin."""
    version, path = request.query_params.get("version", "latest"), request.query_params.get("path", "")
    size = await shown.size(version, path)
    pieces = shown.pieces(version, path)
    try:
        first = await anext(pieces, b"")  # an error that shows at once is told as one
    except BaseException:
        await pieces.aclose()
        raise

    async def body() -> Any:
        try:
            if first:
                yield first
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    name = quote(views.path_of(path).rpartition(b"/")[2], safe="")
    return StreamingResponse(
        body(),
        media_type="application/octet-stream",
        headers={
            "content-length": str(size),
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "content-security-policy": "default-src 'none'; sandbox",
        },
    )


async def _picture(shown: Shown, request: Request) -> Response:
    """A side of a conflict that is a picture."""
    kind, data = await shown.picture(request.query_params.get("copy", ""), request.query_params.get("side", ""))
    return Response(
        data,
        media_type=kind,
        headers={"content-disposition": "attachment", "content-security-policy": "default-src 'none'; sandbox"},
    )


async def _body(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError):
        return None


def _gone() -> Response:
    return JSONResponse(
        {"error": {"kind": "Missing", "message": "There is nothing here.", "next_step": ""}}, status_code=404
    )


async def _told(_: Request, e: Exception) -> Response:
    assert isinstance(e, MetaSyncError)
    return JSONResponse({"error": views.error(e)}, status_code=FAILED)


async def _too_much(_: Request, __: Exception) -> Response:
    return JSONResponse(
        {"error": {"kind": "Refused", "message": "That is too much.", "next_step": ""}}, status_code=413
    )


async def _no_such(_: Request, e: Exception) -> Response:
    assert isinstance(e, HTTPException)
    return JSONResponse(
        {"error": {"kind": "Missing", "message": "There is nothing here.", "next_step": ""}}, status_code=e.status_code
    )


async def _failed(request: Request, e: Exception) -> Response:
    """A mistake of ours: told without what it holds, and logged with it."""
    _log.error("the page could not answer %s", request.scope.get("route"), exc_info=e)
    message = "The program made a mistake, and nothing can be said of how far it came."
    step = "Load the page again. `metasync ui --verbose` prints what happened."
    return JSONResponse({"error": {"kind": "Mistake", "message": message, "next_step": step}}, status_code=500)
