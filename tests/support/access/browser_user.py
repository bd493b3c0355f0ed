"""A person before a browser, played over HTTP: logs in at dex and is sent on to wherever dex sends them.

As a program (`python person.py EMAIL ADDRESS`) it stands in for the browser that `gpu-dev login` opens.
"""

import http.cookiejar
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from html import unescape

PASSWORD = "password"
_FORM = re.compile(r"<form[^>]*action=\"([^\"]*)\"", re.IGNORECASE)


class Person:
    def __init__(self, email: str, password: str = PASSWORD) -> None:
        self.email = email
        self.password = password
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )

    def log_in(self, address: str) -> tuple[str, str]:
        """From the issuer's login page to where it ends: the address and the page there."""
        where, page = self.open(address)
        return self.send(where, page, {"login": self.email, "password": self.password})

    def enter_code(self, address: str, code: str) -> tuple[str, str]:
        """The device login's page, then the same as ever."""
        where, page = self.open(address)
        where, page = self.send(where, page, {"user_code": code})
        return self.send(where, page, {"login": self.email, "password": self.password})

    def open(self, address: str, form: dict[str, str] | None = None) -> tuple[str, str]:
        data = None if form is None else urllib.parse.urlencode(form).encode()
        with self._opener.open(address, data, timeout=30) as answer:
            return answer.geturl(), answer.read().decode()

    def send(self, where: str, page: str, fields: dict[str, str]) -> tuple[str, str]:
        form = _FORM.search(page)
        assert form is not None, f"no form at {where}:\n{page[:2000]}"
        hidden = dict(re.findall(r"<input[^>]*type=\"hidden\"[^>]*name=\"([^\"]*)\"[^>]*value=\"([^\"]*)\"", page))
        target = urllib.parse.urljoin(where, unescape(form.group(1)))
        return self.open(target, {**{name: unescape(value) for name, value in hidden.items()}, **fields})

    def disturb(self, address: str) -> list[int]:
        """What somebody else on this machine might send to where the browser is to be sent back; answers' statuses."""
        back = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["redirect_uri"][0]
        state = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["state"][0]
        elsewhere = back.rpartition("/")[0]
        tries = [
            f"{back}?code=evil&state=wrong",
            f"{back}?code=evil",
            f"{back}?error=access_denied&state=",
            f"{back}?code=evil&state={state}&state={state}",
            f"{elsewhere}/other?code=evil&state={state}",
            elsewhere + "/favicon.ico",
        ]
        return [self._status(one) for one in tries]

    def _status(self, address: str) -> int:
        try:
            with self._opener.open(address, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


if __name__ == "__main__":
    person = Person(sys.argv[1])
    statuses = person.disturb(sys.argv[2])
    if statuses != [400] * len(statuses):
        sys.exit(f"somebody else was listened to: {statuses}")
    person.log_in(sys.argv[2])
