"""A stand-in for the Hugging Face hub: enough of its protocol to create, push and download."""

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Hub:
    """What the hub holds: by repository and revision, the files; `refused` answers all with it."""

    def __init__(self):
        self.repos, self.refused, self.url = {}, None, ""

    def add(self, repo, files, revision="main"):
        self.repos.setdefault(repo, {"main": {}}).setdefault(revision, {}).update(files)

    def commit_of(self, repo, revision):
        content = b"".join(sorted(self.repos[repo][revision].values()))
        return hashlib.sha1(revision.encode() + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        found = re.fullmatch(r"/([\w-]+/[\w-]+)/resolve/([\w-]+)/([\w.-]+)", self.path)
        if self.hub.refused:
            return self.answer(self.hub.refused)
        if not found or found[1] not in self.hub.repos:
            return self.answer(404, X_Error_Code="RepoNotFound")
        repo, revision, name = found.groups()
        if revision not in self.hub.repos[repo]:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        commit = self.hub.commit_of(repo, revision)
        if name not in self.hub.repos[repo][revision]:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        content = self.hub.repos[repo][revision][name]
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        return self.answer(200, content, ETag=etag, X_Repo_Commit=commit)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.hub.refused:
            return self.answer(self.hub.refused)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            exists = repo in self.hub.repos
            self.hub.add(repo, {})
            return self.reply({"url": f"{self.hub.url}/{repo}"}, 409 if exists else 200)
        if self.path == "/api/validate-yaml":
            return self.reply({"errors": [], "warnings": []})
        repo, action, revision = re.match(
            r"/api/models/([\w-]+/[\w-]+)/(\w+)/([\w-]+)", self.path
        ).groups()
        if action == "branch":
            self.hub.add(repo, {}, revision)
            return self.reply({})
        if action == "preupload":
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names
            ]
            return self.reply({"files": modes})
        assert action == "commit"
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.hub.add(repo, {line["value"]["path"]: content}, revision)
        commit = self.hub.commit_of(repo, revision)
        return self.reply(
            {"commitOid": commit, "commitUrl": f"{self.hub.url}/{repo}/commit/{commit}"}
        )

    def reply(self, value, status=200):
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")


@contextmanager
def serve_hub():
    """Run the stand-in on a port of this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
