"""The Cloud port on AWS. Region, credentials and address are found as every AWS program finds them (AWS_REGION,
AWS_ENDPOINT_URL, the pod's role …)."""

from gpudev.adapters.aws.client import AwsClient
from gpudev.adapters.aws.instance_refresh import AwsNodeGroups
from gpudev.adapters.aws.viewing import AwsInventory
from gpudev.adapters.aws.volumes import AwsVolumes
from gpudev.settings import AwsSettings


class AwsCloud(AwsInventory, AwsVolumes, AwsNodeGroups):
    def __init__(self, settings: AwsSettings) -> None:
        caller = AwsClient(settings)
        AwsInventory.__init__(self, caller)
        AwsVolumes.__init__(self, caller, settings)
        AwsNodeGroups.__init__(self, caller)

    @property
    def name(self) -> str:
        return "aws"

    async def start(self) -> None:
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()
