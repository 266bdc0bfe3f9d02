"""A model by its hub id, through huggingface_hub: its config and the headers of its weights, never the weights.

HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the client's cache count as they do everywhere.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from capplan.errors import DataFileError, MissingPackageError
from capplan.models.hf import MAX_BYTES, QUANTISED, SIDE_FILE, load_json, read_config
from capplan.models.reader import with_headers, with_read
from capplan.models.safetensors import INDEX, MAX_INDEX, Headers, add_tensors, header_length, index_of
from capplan.models.spec import Model

T = TypeVar("T")

_CONFIGS = ("config.json", "params.json")
_SINGLE = ("model.safetensors", "consolidated.safetensors")
FIRST = 100_000  # bytes of a file asked for first: most headers are shorter
WORKERS = 8
MAX_READ = 200  # shards whose headers are asked for; beyond, the index says the bytes


def read_hub(name: str) -> Model:
    """The model of a hub id.

    Raises:
        MissingPackageError: huggingface_hub is not installed.
        DataFileError: the hub has no such model, can't be reached, or its files can't be read right.
    """
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise MissingPackageError(
            f"{name!r} is in no registry and no path; reading it from the hub needs a package: "
            "pip install 'capplan[hf]'"
        ) from error
    with _quiet(huggingface_hub.utils):
        return _read(_Hub(huggingface_hub, name))


def _read(hub: _Hub) -> Model:
    config = hub.file("config.json") or hub.file("params.json")
    if config is None:
        raise DataFileError(f"hub model {hub.name!r} has neither a config.json nor a params.json")
    if config.name == "params.json":
        from capplan.models.mistral import read_params

        model = read_params(config)
    else:
        if not any(load_json(config).get(field) for field in QUANTISED):
            hub.file(SIDE_FILE)  # lands beside the config, where it is read
        model = read_config(config)
    model = _with_bytes(model, hub, config.parent)
    said = (f"{hub.why}: read from the cache",) if hub.why else ()
    return model._replace(
        id=hub.name,
        name=hub.name.split("/")[1],
        source=f"{hub.endpoint}/{hub.name}",
        assumptions=model.assumptions + said,
    )


def _with_bytes(model: Model, hub: _Hub, snapshot: Path) -> Model:
    """The model with the bytes of its weights, from the cache or from their headers; said if neither can be had."""
    try:
        local = with_headers(model, snapshot)
        if local.checkpoint_bytes_read:
            return local
        return hub.with_sizes(model)
    except DataFileError as error:
        said = f"the sizes of its weights could not be read ({error}): bytes are worked out from the config"
        return model._replace(assumptions=(*model.assumptions, said))


@contextmanager
def _quiet(utils: Any) -> Iterator[None]:
    """Without the client's progress bars: what is read is small."""
    silent = utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        if not silent:
            utils.enable_progress_bars()


class _Hub:
    """The files of one model, through the client; its errors in one line."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name
        self.endpoint = str(client.constants.ENDPOINT)
        self.offline = bool(client.constants.HF_HUB_OFFLINE)
        self.why: DataFileError | None = None  # it can't be reached

    def file(self, filename: str, most: int = MAX_BYTES) -> Path | None:
        """A small file, from the hub or the cache; None if the model has none."""
        if not self.offline and not self._has(filename, most):
            return None
        download, errors = self.client.hf_hub_download, self.client.errors

        def get() -> Path | None:
            try:
                return Path(download(self.name, filename, local_files_only=self.offline))
            except errors.LocalEntryNotFoundError:
                if any(self._cached(other) for other in _CONFIGS if other != filename):
                    return None  # what is in the cache is all there is
                raise self.why or DataFileError(
                    f"hub model {self.name!r} is not in the cache, and HF_HUB_OFFLINE is set"
                ) from None

        return self._asked(get)

    def _has(self, filename: str, most: int) -> bool:
        """Whether the hub has a file that is as small as it should be. The client's own try for a file waits for
        minutes where nobody answers; here it is asked once, and then the cache has to do."""
        url = self.client.hf_hub_url(self.name, filename)
        try:
            found = self._asked(lambda: self.client.get_hf_file_metadata(url))
        except DataFileError as error:
            cause, errors = error.__cause__, self.client.errors
            if isinstance(cause, errors.EntryNotFoundError):
                return False
            if isinstance(cause, errors.RepositoryNotFoundError | errors.HFValidationError):
                raise
            self.offline, self.why = True, error
            return True
        if found.size and found.size > most:
            raise DataFileError(f"{filename!r} of hub model {self.name!r} is larger than {most:,} bytes")
        return True

    def _cached(self, filename: str) -> bool:
        return isinstance(self.client.try_to_load_from_cache(self.name, filename), str)

    def with_sizes(self, model: Model) -> Model:
        """The model with what the headers of its safetensors add up to."""
        if self.offline:
            return model
        index = self.file(INDEX, MAX_INDEX)
        if index is None:
            names, total = [name for name in _SINGLE if self._has(name, 2**62)][:1], None
            if self.offline:
                return model
        else:
            names, total = index_of(index)
        if not names:
            return model
        if len(names) > MAX_READ:
            return with_read(model, {"index": total}, {}) if total else model
        headers = Headers()
        with ThreadPoolExecutor(WORKERS) as pool:
            for content, size, name in pool.map(self._header, names):
                where = f"{name!r} of hub model {self.name!r}"
                add_tensors(headers, content, len(content), size, where, len(model.layers))
        return with_read(model, headers.bytes, headers.weights)

    def _header(self, filename: str) -> tuple[bytes, int, str]:
        """The JSON of a file's header, with the size of the whole file; nothing beyond is read."""
        where = f"{filename!r} of hub model {self.name!r}"
        begin, size = self._range(filename, 0, FIRST)
        length = header_length(begin[:8], size, where)
        content = begin[8 : 8 + length]
        if len(content) < length:
            content, _ = self._range(filename, 8, length)
        return content, size, filename

    def _range(self, filename: str, start: int, count: int) -> tuple[bytes, int]:
        """So many bytes of a file from a place on, and its size; a server that sends more is cut off."""
        utils = self.client.utils
        url = self.client.hf_hub_url(self.name, filename)
        asked = {**utils.build_hf_headers(), "Range": f"bytes={start}-{start + count - 1}"}
        timeout = self.client.constants.HF_HUB_DOWNLOAD_TIMEOUT

        def get() -> tuple[bytes, int]:
            with utils.get_session().stream(
                "GET", url, headers=asked, timeout=timeout, follow_redirects=True
            ) as reply:
                utils.hf_raise_for_status(reply)
                whole = reply.headers.get("Content-Range", "").rpartition("/")[2]
                if reply.status_code != 206 or not whole.isdecimal():
                    raise DataFileError(f"{self.endpoint} does not send parts of {filename!r}")
                found = io.BytesIO()
                for piece in reply.iter_bytes(65_536):
                    found.write(piece)
                    if found.tell() >= count:
                        break
                return found.getvalue()[:count], int(whole)

        return self._asked(get)

    def _asked(self, ask: Callable[[], T]) -> T:
        """What the client answers; whatever goes wrong on the way in one line."""
        try:
            return ask()
        except DataFileError:
            raise
        except Exception as error:  # the client's, its http library's, the system's
            raise DataFileError(self._said(error)) from error

    def _said(self, error: Exception) -> str:
        errors, name = self.client.errors, repr(self.name)
        if isinstance(error, errors.GatedRepoError):
            return (
                f"hub model {name} is gated: accept its terms at {self.endpoint}/{self.name} and give a token "
                "(hf auth login, or HF_TOKEN)"
            )
        if isinstance(error, errors.HFValidationError):
            return f"{name} is not a hub id such as org/name"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
            return f"{self.endpoint} has no model {name}, or it is private and the token (HF_TOKEN) does not open it"
        if status is not None:
            return f"{self.endpoint} answered {status} for hub model {name}"
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        text = " ".join(str(cause).split()) or type(cause).__name__
        if "timeout" in type(cause).__name__.lower() or "timed out" in text:
            return f"{self.endpoint} did not answer in time for hub model {name}"
        return f"can't read hub model {name} from {self.endpoint}: {text[:200]}"
