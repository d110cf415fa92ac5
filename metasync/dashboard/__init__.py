"""The page: a web page on loopback that shows workspaces and works at them. `metasync ui` opens it.

A process of its own serves it to one browser of the user who started it (`gate`), works at a folder in threads
(`workers`), is told what happens by the daemon or by its own work (`sources`), and turns reports into
what the page shows (`views`, `compare`). `static/` holds the page: HTML, CSS and JavaScript as browsers take them.

The extra `ui` brings what it needs: Starlette, uvicorn and segno are imported here alone.
"""
