"""Requests as the two Query APIs take them: flat parameters that stand for lists, filters, tags and pages."""

import base64
import binascii
import bisect
import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

from support.clouds.aws_stub.account import Refused

_Thing = TypeVar("_Thing")
Filters = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Request:
    service: str
    """ec2 or autoscaling."""
    action: str
    parameters: Mapping[str, str]

    @property
    def permission(self) -> str:
        return f"{self.service}:{self.action}"

    @property
    def is_change(self) -> bool:
        return not self.action.startswith("Describe")

    @property
    def page(self) -> int:
        """The first is 1. Only a token says which one is asked for."""
        token = self.parameters.get("NextToken")
        return 1 if not token else _open_token(token).page

    def get(self, name: str) -> str:
        if name not in self.parameters:
            raise Refused("MissingParameter", f"The request must contain the parameter {name}")
        return self.parameters[name]

    def numbered(self, name: str) -> list[str]:
        """`name.1`, `name.2` …"""
        found: list[str] = []
        while (value := self.parameters.get(f"{name}.{len(found) + 1}")) is not None:
            found.append(value)
        return found

    def filters(self) -> Filters:
        found: dict[str, Sequence[str]] = {}
        while (name := self.parameters.get(f"Filter.{len(found) + 1}.Name")) is not None:
            values = self.numbered(f"Filter.{len(found) + 1}.Value")
            if len(values) > 200:
                raise Refused("FilterLimitExceeded", "The maximum number of filter values is 200.")
            found[name] = values
        return found

    def tags(self, prefix: str = "Tag") -> dict[str, str]:
        found: dict[str, str] = {}
        while (key := self.parameters.get(f"{prefix}.{len(found) + 1}.Key")) is not None:
            found[key] = self.parameters.get(f"{prefix}.{len(found) + 1}.Value", "")
        return found

    def specified_tags(self, resource_type: str) -> dict[str, str]:
        if self.parameters.get("TagSpecification.1.ResourceType", resource_type) != resource_type:
            raise Refused("InvalidParameterValue", "tags for another type of resource")
        return self.tags("TagSpecification.1.Tag")


def parse_request(service: str, body: bytes) -> Request:
    pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True)
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        raise Refused("InvalidParameterCombination", "a parameter was given twice")
    return Request(service, parameters.get("Action", ""), parameters)


@dataclass(frozen=True, slots=True)
class _Token:
    """Where a listing goes on. Opaque to clients."""

    page: int
    after: str
    question: str
    age: int


@dataclass(slots=True)
class Pages:
    limit: int | None = None
    """No page has more than so many, whatever was asked for."""
    sparse: bool = False
    """Pages are cut before filters are applied, so that some are short or empty and there is more all the same."""
    age: int = 0
    """Tokens of an earlier age have expired."""
    expired_code: str = field(default="InvalidParameterValue")

    def cut(self, request: Request, things: Mapping[str, _Thing], keep: Callable[[_Thing], bool]) -> "Page[_Thing]":
        """One page of those that it should `keep`, in the order of their names."""
        size = self._size(request)
        question = _question(request)
        token = _open_token(request.parameters["NextToken"]) if request.parameters.get("NextToken") else None
        if token is not None and (token.age != self.age or token.question != question):
            raise Refused(self.expired_code, "Unable to parse pagination token")
        names = sorted(things)
        start = bisect.bisect_right(names, token.after) if token else 0
        found: list[_Thing] = []
        for position in range(start, len(names)):
            if size is not None and (position - start if self.sparse else len(found)) == size:
                number = (token.page if token else 1) + 1
                return Page(found, _close_token(_Token(number, names[position - 1], question, self.age)))
            if keep(things[names[position]]):
                found.append(things[names[position]])
        return Page(found, None)

    def _size(self, request: Request) -> int | None:
        asked = request.parameters.get("MaxResults") or request.parameters.get("MaxRecords")
        lowest, highest = (1, 100) if request.service == "autoscaling" else (5, 1000)
        if asked is None:
            return self.limit
        if int(asked) < lowest:
            raise Refused("InvalidParameterValue", f"MaxResults must be at least {lowest}")
        return min(int(asked), highest, self.limit or highest)


@dataclass(frozen=True, slots=True)
class Page(Generic[_Thing]):
    things: list[_Thing]
    next_token: str | None


def matches_tags(filters: Filters, tags: Mapping[str, str]) -> bool:
    for name, wanted in filters.items():
        if name == "tag-key":
            if not any(fnmatch.fnmatchcase(key, pattern) for key in tags for pattern in wanted):
                return False
        elif name.startswith("tag:"):
            value = tags.get(name.removeprefix("tag:"))
            if value is None or not any(fnmatch.fnmatchcase(value, pattern) for pattern in wanted):
                return False
    return True


def _question(request: Request) -> str:
    asked = {name: value for name, value in request.parameters.items() if name not in ("NextToken", "Version")}
    return json.dumps(asked, sort_keys=True)


def _close_token(token: _Token) -> str:
    return base64.b64encode(json.dumps([token.page, token.after, token.question, token.age]).encode()).decode()


def _open_token(text: str) -> _Token:
    try:
        return _Token(*json.loads(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, TypeError):
        raise Refused("InvalidParameterValue", "Unable to parse pagination token") from None
