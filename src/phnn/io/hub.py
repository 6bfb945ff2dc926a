"""Models on the Hugging Face hub; needs the extra `hub`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from phnn.io.card import CARD_MARK
from phnn.io.container import SUFFIX
from phnn.io.loading import Build, load
from phnn.io.saving import save

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MODEL = f"model{SUFFIX}"
CARD = "README.md"


class HubError(OSError):
    """The hub does not have what was asked for, does not allow it, or cannot be reached."""


def push_to_hub(
    model: nn.Module,
    repo: str,
    *,
    scores: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage: str = "float32",
    private: bool | None = None,
    revision: str | None = None,
    message: str | None = None,
    token: str | None = None,
) -> str:
    """Put a model on the Hugging Face hub, with a card that says what it is.

    The repository is created if there is none. It gets what `phnn.save` writes into a folder:
    `model.safetensors`, `config.json` and the card, with sizes, scores and the recipe. A card that
    somebody else wrote is left as it is.

    Args:
        model: A network of `create_model`, a converted model, or any other module.
        repo: Where to put it: "user/model".
        scores: What was measured, by name, for the card: `{"test accuracy": 0.93}`.
        recipe: How it was trained, for the card: the recipe of a run, or a text.
        metadata: What else travels with the model; by default what it was loaded with.
        storage: The type of the filters in the file; see `phnn.save`.
        private: Whether only you can see a new repository; by default as your account has it.
        revision: The branch; the main one by default.
        message: What the commit says.
        token: Your token; by default that of `hf auth login`.

    Returns:
        The address of the commit.

    Raises:
        HubError: The hub does not allow it, or cannot be reached.
    """
    api = make_api(token)
    _check_name(repo)
    if metadata is None:
        metadata = getattr(model, "phnn_metadata", {})
    described = {"scores": scores and dict(scores), "recipe": recipe}
    metadata = {**metadata, **{key: value for key, value in described.items() if value}}
    with tempfile.TemporaryDirectory(prefix="phnn-") as folder:
        save(model, folder, metadata=metadata, storage=storage)
        with _explained(repo, revision, doing="push to"):
            api.create_repo(repo, exist_ok=True, private=private)
            if revision is not None:
                api.create_branch(repo, branch=revision, exist_ok=True)
            kept = [CARD] if _has_own_card(api, repo, revision) else None
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                revision=revision,
                commit_message=message or "Add a model of phnn",
                ignore_patterns=kept,
            )
    return str(commit.commit_url)


def from_pretrained(
    repo: str,
    *,
    model: nn.Module | Build | None = None,
    revision: str | None = None,
    device: torch.device | str = "cpu",
    cache: str | Path | None = None,
    offline: bool = False,
    token: str | None = None,
) -> nn.Module:
    """Load a model from the Hugging Face hub, or from its cache on this machine.

    What was downloaded once is used again, also without a network. The file is checked as
    `phnn.load` checks every file; nothing in it is executed.

    Args:
        repo: The repository: "user/model". `phnn.load` reads files and folders.
        model: What to load into, for a model that `create_model` did not make; see `phnn.load`. For
            a converted model, a function that builds the original.
        revision: A branch, a tag or a commit; the newest of the main branch by default.
        device: Where the model is put.
        cache: The folder of downloads; by default that of huggingface_hub.
        offline: Use the cache alone.
        token: Your token, for a private repository; by default that of `hf auth login`.

    Returns:
        The model in evaluation mode. Its `phnn_metadata` holds the metadata, with `scores` and
        `recipe` if it was pushed with them.

    Raises:
        HubError: There is no such model, you may not read it, or the hub cannot be reached and the
            cache does not have it.
        ModelFileError: The file is not one of `phnn.save`, or is for another model.
    """
    api = make_api(token)
    _check_name(repo)
    with _explained(repo, revision, doing="load"):
        file = api.hf_hub_download(
            repo, MODEL, revision=revision, cache_dir=cache, local_files_only=offline
        )
    return load(file, model=model, device=device)


def make_api(token: str | None) -> HfApi:
    """Return the client of the hub.

    Raises:
        ImportError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ImportError(
            'models on the hub need huggingface_hub: pip install "phnn[hub]"'
        ) from error
    return HfApi(token=token, library_name="phnn", library_version=version("phnn"))


def _check_name(repo: str) -> None:
    if Path(repo).suffix == SUFFIX or Path(repo).is_absolute():
        raise ValueError(f"{repo!r} is a path; phnn.load and phnn.save take files and folders")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo):
        raise ValueError(
            f"repo={repo!r} must be like 'user/model': two names of letters, digits, - . and _"
        )


def _has_own_card(api: HfApi, repo: str, revision: str | None) -> bool:
    """Say whether the repository has a card that phnn did not write."""
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with tempfile.TemporaryDirectory(prefix="phnn-") as folder:
        try:
            card = api.hf_hub_download(repo, CARD, revision=revision, cache_dir=folder)
        except RemoteEntryNotFoundError:
            return False
        return CARD_MARK not in Path(card).read_text(encoding="utf-8")


@contextmanager
def _explained(repo: str, revision: str | None, *, doing: str) -> Iterator[None]:
    """Say in one sentence what went wrong, and what helps."""
    from huggingface_hub import errors

    what = repo if revision is None else f"{repo} at {revision!r}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"cannot {doing} {what}: its owner gives access on request; ask for it on the hub, "
            "then log in with `hf auth login`, or pass token="
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"cannot {doing} {what}: the hub has no model of this name that you may read. Check "
            "the name; for a private one log in with `hf auth login`, or pass token="
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(
            f"cannot {doing} {what}: the repository has no branch, tag or commit of this name"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise HubError(
            f"cannot {doing} {what}: it is not in the cache of this machine, and the hub was not "
            "reached. Connect once, or copy its files here and use phnn.load"
        ) from error
    except errors.EntryNotFoundError as error:
        raise HubError(
            f"cannot {doing} {what}: it has no {MODEL}, so it is not a model of phnn.push_to_hub"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        helps = (
            "log in with `hf auth login`, or pass a token= that may write"
            if status in (401, 403)
            else "try again later"
        )
        raise HubError(f"cannot {doing} {what}: the hub answered {status}; {helps}") from error
    except Exception as error:
        if not _is_network(error):
            raise
        raise HubError(
            f"cannot {doing} {what}: the hub was not reached ({error}); check the connection. "
            "phnn.save writes the same files into a folder"
        ) from error


def _is_network(error: BaseException) -> bool:
    """Say whether an error came from the network, whichever HTTP client the hub's package uses."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(
        names & {"ConnectionError", "TransportError", "TimeoutException", "RequestException"}
    )
