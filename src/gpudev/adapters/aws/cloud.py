"""The Cloud port on AWS. Region, credentials and address are found as every AWS program finds them (AWS_REGION,
AWS_ENDPOINT_URL, the pod's role …)."""

from gpudev.adapters.aws.client import AwsCaller
from gpudev.adapters.aws.instance_refresh import AwsGroups
from gpudev.adapters.aws.viewing import AwsView
from gpudev.adapters.aws.volumes import AwsDisks
from gpudev.settings import AwsSettings


class AwsCloud(AwsView, AwsDisks, AwsGroups):
    def __init__(self, settings: AwsSettings) -> None:
        caller = AwsCaller(settings)
        AwsView.__init__(self, caller)
        AwsDisks.__init__(self, caller, settings)
        AwsGroups.__init__(self, caller)

    @property
    def name(self) -> str:
        return "aws"

    async def start(self) -> None:
        await self._caller.start()

    async def close(self) -> None:
        await self._caller.close()
