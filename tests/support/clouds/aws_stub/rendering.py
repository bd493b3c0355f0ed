"""Answers as XML, in the shape and with the names that the two services use."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from xml.sax.saxutils import escape

from support.clouds.aws_stub.account import Group, Modification, Refreshed, Refused, Snapshot, Volume

_EC2 = "http://ec2.amazonaws.com/doc/2016-11-15/"
_AUTOSCALING = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
_REQUEST_ID = "59dbff89-35bd-4eac-99ed-be587EXAMPLE"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def ec2_answer(action: str, content: str) -> str:
    return f'{_HEAD}<{action}Response xmlns="{_EC2}"><requestId>{_REQUEST_ID}</requestId>{content}</{action}Response>'


def ec2_listing(action: str, set_name: str, items: Iterable[str], next_token: str | None) -> str:
    more = f"<nextToken>{next_token}</nextToken>" if next_token else ""
    return ec2_answer(action, f"<{set_name}>{''.join(items)}</{set_name}>{more}")


def autoscaling_answer(action: str, content: str) -> str:
    return (
        f'{_HEAD}<{action}Response xmlns="{_AUTOSCALING}"><{action}Result>{content}</{action}Result>'
        f"<ResponseMetadata><RequestId>{_REQUEST_ID}</RequestId></ResponseMetadata></{action}Response>"
    )


def error_answer(service: str, error: Refused) -> str:
    code, message = escape(error.code), escape(error.message)
    if service == "autoscaling":
        return (
            f'{_HEAD}<ErrorResponse xmlns="{_AUTOSCALING}"><Error><Type>Sender</Type><Code>{code}</Code>'
            f"<Message>{message}</Message></Error><RequestId>{_REQUEST_ID}</RequestId></ErrorResponse>"
        )
    return (
        f"{_HEAD}<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        f"<RequestID>{_REQUEST_ID}</RequestID></Response>"
    )


def volume_fields(volume: Volume) -> str:
    attachments = "".join(
        f"<item><volumeId>{volume.volume_id}</volumeId><instanceId>{attachment.instance_id}</instanceId>"
        f"<device>/dev/xvdf</device><status>{attachment.state}</status><attachTime>{_time(volume.created_at)}"
        "</attachTime><deleteOnTermination>false</deleteOnTermination></item>"
        for attachment in volume.attachments
    )
    return (
        f"<volumeId>{volume.volume_id}</volumeId><size>{volume.size_gb}</size>"
        f"<snapshotId>{volume.snapshot_id}</snapshotId><availabilityZone>{volume.zone}</availabilityZone>"
        f"<status>{volume.state}</status><createTime>{_time(volume.created_at)}</createTime>"
        f"<attachmentSet>{attachments}</attachmentSet>{_tags(volume.tags)}<volumeType>gp3</volumeType>"
        "<iops>3000</iops><encrypted>true</encrypted><multiAttachEnabled>false</multiAttachEnabled>"
        "<throughput>125</throughput>"
    )


def snapshot_fields(snapshot: Snapshot) -> str:
    # CreateSnapshot and DescribeSnapshots both say `status` and mean the state.
    return (
        f"<snapshotId>{snapshot.snapshot_id}</snapshotId><volumeId>{snapshot.volume_id}</volumeId>"
        f"<status>{snapshot.state}</status><startTime>{_time(snapshot.created_at)}</startTime>"
        f"<progress>{'100%' if snapshot.state == 'completed' else '30%'}</progress>"
        f"<ownerId>{snapshot.owner_id}</ownerId><volumeSize>{snapshot.size_gb}</volumeSize><description/>"
        f"<encrypted>true</encrypted>{_tags(snapshot.tags)}<storageTier>standard</storageTier>"
    )


def modification_fields(modification: Modification) -> str:
    return (
        f"<volumeId>{modification.volume_id}</volumeId><modificationState>{modification.state}</modificationState>"
        f"<targetSize>{modification.target_size}</targetSize><originalSize>{modification.original_size}</originalSize>"
        f"<progress>0</progress><startTime>{_time(modification.started_at)}</startTime>"
    )


def group_member(group: Group, zones: tuple[str, ...]) -> str:
    instances = "".join(
        f"<member><InstanceId>{group.ids[number]}</InstanceId><AvailabilityZone>{zones[0]}</AvailabilityZone>"
        f"<LifecycleState>{state}</LifecycleState><HealthStatus>Healthy</HealthStatus>"
        "<ProtectedFromScaleIn>false</ProtectedFromScaleIn></member>"
        for number, state in enumerate(group.instances)
    )
    in_zones = "".join(f"<member>{zone}</member>" for zone in zones)
    return (
        f"<member><AutoScalingGroupName>{escape(group.name)}</AutoScalingGroupName><MinSize>0</MinSize>"
        f"<MaxSize>100</MaxSize><DesiredCapacity>{group.desired}</DesiredCapacity><DefaultCooldown>300"
        f"</DefaultCooldown><AvailabilityZones>{in_zones}</AvailabilityZones><HealthCheckType>EC2</HealthCheckType>"
        f"<Instances>{instances}</Instances><CreatedTime>2026-01-01T00:00:00.000Z</CreatedTime></member>"
    )


def refresh_member(group: Group, refreshed: Refreshed) -> str:
    percent = "" if refreshed.percent is None else f"<PercentageComplete>{refreshed.percent}</PercentageComplete>"
    reason = f"<StatusReason>{escape(refreshed.reason)}</StatusReason>" if refreshed.reason else ""
    return (
        f"<member><InstanceRefreshId>{refreshed.refresh_id}</InstanceRefreshId><AutoScalingGroupName>"
        f"{escape(group.name)}</AutoScalingGroupName><Status>{refreshed.status}</Status>{reason}{percent}</member>"
    )


def _tags(tags: Mapping[str, str]) -> str:
    items = "".join(
        f"<item><key>{escape(key)}</key><value>{escape(value)}</value></item>" for key, value in tags.items()
    )
    return f"<tagSet>{items}</tagSet>" if items else ""


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
