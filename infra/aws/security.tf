# Inbound traffic to the machines. Kubernetes assigns dynamic NodePorts from 30086 on first (the static band is below), so dev
# servers use these, and the fixed ports can stay closed to users.
locals {
  fixed_ports = {
    grafana   = 30080
    api       = 30081
    ghcr      = 30050
    dockerhub = 30051
  }
  first_ssh_port = 30086
  last_ssh_port  = 32767
}

resource "aws_security_group" "nodes" {
  name_prefix = "${var.prefix}-nodes-"
  description = "GPU dev servers: the machines"
  vpc_id      = aws_vpc.main.id
  tags        = { Name = "${var.prefix}-nodes" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_egress_rule" "nodes_to_anywhere" {
  security_group_id = aws_security_group.nodes.id
  description       = "Images, packages, the cloud"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each          = var.ssh_cidrs
  security_group_id = aws_security_group.nodes.id
  description       = "SSH to dev servers"
  ip_protocol       = "tcp"
  from_port         = local.first_ssh_port
  to_port           = local.last_ssh_port
  cidr_ipv4         = each.value
}

resource "aws_vpc_security_group_ingress_rule" "grafana" {
  for_each          = var.grafana_cidrs
  security_group_id = aws_security_group.nodes.id
  description       = "Grafana"
  ip_protocol       = "tcp"
  from_port         = local.fixed_ports.grafana
  to_port           = local.fixed_ports.grafana
  cidr_ipv4         = each.value
}

resource "aws_vpc_security_group_ingress_rule" "from_balancers" {
  for_each                     = { api = aws_security_group.api.id, ghcr = aws_security_group.caches.id, dockerhub = aws_security_group.caches.id }
  security_group_id            = aws_security_group.nodes.id
  description                  = "Load balancer of ${each.key}"
  ip_protocol                  = "tcp"
  from_port                    = local.fixed_ports[each.key]
  to_port                      = local.fixed_ports[each.key]
  referenced_security_group_id = each.value
}

# EFA needs all traffic allowed between the machines, in both directions.
resource "aws_security_group" "efa" {
  name_prefix = "${var.prefix}-efa-"
  description = "GPU dev servers: between machines, by EFA"
  vpc_id      = aws_vpc.main.id
  tags        = { Name = "${var.prefix}-efa" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  description                  = "EFA"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.efa.id
}

resource "aws_vpc_security_group_egress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  description                  = "EFA"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.efa.id
}
