# One private network with a subnet per zone. All machines have public addresses, so that users can reach their dev servers by
# SSH without NAT. security.tf decides about inbound traffic.
data "aws_availability_zones" "available" {
  state = "available"
  # EKS does not support control planes in these zones of us-east-1, us-west-1 and ca-central-1.
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"]

  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }

  lifecycle {
    postcondition {
      condition     = var.primary_zone == "" || contains(self.names, var.primary_zone)
      error_message = "Invalid primary_zone ${var.primary_zone}: the zones of ${var.aws_region} are ${join(", ", sort(self.names))}."
    }
  }
}

locals {
  zones        = sort(data.aws_availability_zones.available.names)
  primary_zone = var.primary_zone != "" ? var.primary_zone : local.zones[0]
  # By its letter, so that adding or removing a zone changes no other zone's addresses.
  subnet_cidrs = {
    for zone in local.zones : zone => cidrsubnet(var.vpc_cidr, 4, index(split("", "abcdefghijklmnop"), substr(zone, -1, 1)))
  }
}

resource "aws_vpc" "main" {
  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = { Name = "${var.prefix}-vpc" }
}

resource "aws_internet_gateway" "main" {
  vpc_id = aws_vpc.main.id
  tags   = { Name = "${var.prefix}-internet" }
}

resource "aws_subnet" "public" {
  for_each                = local.subnet_cidrs
  vpc_id                  = aws_vpc.main.id
  availability_zone       = each.key
  cidr_block              = each.value
  map_public_ip_on_launch = true
  tags = {
    Name                                          = "${var.prefix}-${each.key}"
    "kubernetes.io/role/elb"                      = "1"
    "kubernetes.io/role/internal-elb"             = "1"
    "kubernetes.io/cluster/${local.cluster_name}" = "shared"
  }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.main.id
  tags   = { Name = "${var.prefix}-public" }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.main.id
}

resource "aws_route_table_association" "public" {
  for_each       = aws_subnet.public
  subnet_id      = each.value.id
  route_table_id = aws_route_table.public.id
}

resource "aws_placement_group" "gpu" {
  for_each = { for name, group in local.gpu_groups : name => group if group.placement }
  name     = "${var.prefix}-gpu-${each.key}"
  strategy = "cluster"
}
