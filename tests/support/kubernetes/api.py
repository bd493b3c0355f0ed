"""What tests ask a Kubernetes API server themselves: plain JSON, independent of the client that is under test.

    api = await KubeApi.connect(kubeconfig)
    pod = await api.create("pods", {...}, namespace)
    pod = await api.wait("pods", name, namespace, lambda pod: pod["status"]["phase"] == "Running")

Kinds go by their plural as in a path: "pods", "nodes", "services", "networkpolicies".
"""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx2

from support.polling import eventually_async

Object = dict[str, Any]
_GROUPS = {
    "events": "api/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "roles": "apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "apis/rbac.authorization.k8s.io/v1",
    "clusterroles": "apis/rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "apis/rbac.authorization.k8s.io/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "deployments": "apis/apps/v1",
    "statefulsets": "apis/apps/v1",
    "jobs": "apis/batch/v1",
    "cronjobs": "apis/batch/v1",
    "storageclasses": "apis/storage.k8s.io/v1",
    "endpointslices": "apis/discovery.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1",
}


class KubeRefused(AssertionError):
    """The API server said no, in its own words."""


class KubeApi:
    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    @classmethod
    async def connect(cls, kubeconfig: Path) -> "KubeApi":
        """By any kubeconfig: token, client certificate or a program that makes a token."""
        from kubernetes_asyncio import client, config  # here: seconds to load, and not everyone who imports us connects

        found = client.Configuration()
        await config.load_kube_config(str(kubeconfig), client_configuration=found)
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if not found.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if found.cert_file:
            context.load_cert_chain(found.cert_file, found.key_file)
        token = await found.get_api_key_with_prefix("BearerToken")
        headers = {"Authorization": token} if token else {}
        return cls(
            httpx2.AsyncClient(base_url=found.host or "", verify=context, headers=headers, trust_env=False, timeout=30)
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        answer = await self._http.get(_path(kind, namespace, name))
        return None if answer.status_code == 404 else _body(answer)

    async def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        return _body(await self._http.get(_path(kind, namespace, name)))

    async def list(
        self, kind: str, namespace: str | None = None, *, selector: str = "", fields: str = ""
    ) -> list[Object]:
        query = {"labelSelector": selector, "fieldSelector": fields}
        items: list[Object] = _body(await self._http.get(_path(kind, namespace), params=query))["items"]
        return items

    async def create(self, kind: str, manifest: Object, namespace: str | None = None) -> Object:
        return _body(await self._http.post(_path(kind, namespace), json=manifest))

    async def patch(
        self, kind: str, name: str, patch: Object, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        """A strategic merge patch: conditions and taints merge by their keys."""
        return _body(
            await self._http.patch(
                _path(kind, namespace, name, subresource),
                json=patch,
                headers={"Content-Type": "application/strategic-merge-patch+json"},
            )
        )

    async def delete(self, kind: str, name: str, namespace: str | None = None, *, grace: int | None = None) -> None:
        """Asks for it; a thing that is not there is fine. `grace=0` takes it out whoever still holds it."""
        query = {} if grace is None else {"gracePeriodSeconds": grace}
        answer = await self._http.delete(_path(kind, namespace, name), params=query)
        if answer.status_code != 404:
            _body(answer)

    async def log(self, pod: str, namespace: str, container: str = "") -> str:
        query = {"container": container} if container else {}
        answer = await self._http.get(_path("pods", namespace, pod, "log"), params=query)
        _check(answer)
        return answer.text

    async def watch(
        self, kind: str, namespace: str | None = None, *, resource_version: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """What changes, until the line breaks; an ERROR in the stream is raised as a refusal."""
        query = {"watch": "1", "resourceVersion": resource_version}
        async with self._http.stream("GET", _path(kind, namespace), params=query, timeout=None) as answer:
            if answer.is_error:
                await answer.aread()
            _check(answer)
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise KubeRefused(str(event["object"]))
                yield event["type"], event["object"]

    async def service_account_token(self, name: str, namespace: str) -> str:
        """As a pod of that account would hold it, by the TokenRequest API; the account is made where missing."""
        if await self.find("serviceaccounts", name, namespace) is None:
            await self.create("serviceaccounts", {"metadata": {"name": name}}, namespace)
        request = {"spec": {"expirationSeconds": 3600}}
        answer = await self._http.post(_path("serviceaccounts", namespace, name, "token"), json=request)
        token: str = _body(answer)["status"]["token"]
        return token

    async def play(self, pod: str, namespace: str, play: str) -> None:
        """Makes a pod on a fake node play something else from now on (stages.py)."""
        await self.patch("pods", pod, {"metadata": {"annotations": {"gpu-dev.test/play": play}}}, namespace)

    async def wait(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        is_so: Callable[[Object], bool],
        *,
        seconds: float = 60,
    ) -> Object:
        """The object once it is so."""
        seen: Object | None = None

        async def found() -> Object | None:
            nonlocal seen
            seen = await self.find(kind, name, namespace)
            return seen if seen is not None and is_so(seen) else None

        def describe() -> str:
            return f"{kind} {name} is not so within {seconds} s: {seen and (seen.get('status') or seen)}"

        return await eventually_async(found, describe, within=seconds, every=0.05)

    async def wait_gone(self, kind: str, name: str, namespace: str | None = None, *, seconds: float = 60) -> None:
        async def is_gone() -> bool:
            return await self.find(kind, name, namespace) is None

        await eventually_async(is_gone, f"{kind} {name} is still there after {seconds} s", within=seconds, every=0.05)


def is_ready(thing: Object) -> bool:
    """Of a pod or a node: its condition Ready is True."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _path(kind: str, namespace: str | None, *rest: str) -> str:
    place = f"/namespaces/{namespace}" if namespace else ""
    return "/".join((f"/{_GROUPS.get(kind, 'api/v1')}{place}/{kind}", *(part for part in rest if part)))


def _body(answer: httpx2.Response) -> Object:
    _check(answer)
    return cast(Object, answer.json())


def _check(answer: httpx2.Response) -> None:
    if answer.is_error:
        raise KubeRefused(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}")
