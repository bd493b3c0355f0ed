# One private network with a subnet for each zone. All machines have public addresses: people reach their dev servers
# there by SSH, and nothing has to be translated. What may come in is decided in security.tf.
data "aws_availability_zones" "available" {
  state = "available"
  # In these EKS makes no control plane, in us-east-1, us-west-1 and ca-central-1.
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"]

  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }

  lifecycle {
    postcondition {
      condition     = var.primary_zone == "" || contains(self.names, var.primary_zone)
      error_message = "primary_zone is ${var.primary_zone}, which is no zone of ${var.aws_region}: ${join(", ", sort(self.names))}."
    }
  }
}

locals {
  zones        = sort(data.aws_availability_zones.available.names)
  primary_zone = var.primary_zone != "" ? var.primary_zone : local.zones[0]
  # By its letter, so that a zone that comes or goes moves no other's addresses.
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
