# Access to the control plane for users and machines. OpenTofu creates the load balancers, not Kubernetes, because their names
# must be known before the chart is installed (the API needs its own name, the machines those of the caches).
data "aws_ec2_managed_prefix_list" "cloudfront" {
  name = "com.amazonaws.global.cloudfront.origin-facing"
}

resource "aws_security_group" "api" {
  name_prefix = "${var.prefix}-api-"
  description = "GPU dev servers: the API's load balancer"
  vpc_id      = aws_vpc.main.id
  tags        = { Name = "${var.prefix}-api" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "api_from_cloudfront" {
  security_group_id = aws_security_group.api.id
  description       = "CloudFront"
  ip_protocol       = "tcp"
  from_port         = 80
  to_port           = 80
  prefix_list_id    = data.aws_ec2_managed_prefix_list.cloudfront.id
}

resource "aws_vpc_security_group_ingress_rule" "api_for_debugging" {
  for_each          = var.loadbalancer_cidrs
  security_group_id = aws_security_group.api.id
  description       = "Debugging"
  ip_protocol       = "tcp"
  from_port         = 80
  to_port           = 80
  cidr_ipv4         = each.value
}

resource "aws_security_group" "caches" {
  name_prefix = "${var.prefix}-caches-"
  description = "GPU dev servers: the image caches' load balancer"
  vpc_id      = aws_vpc.main.id
  tags        = { Name = "${var.prefix}-caches" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "caches" {
  security_group_id = aws_security_group.caches.id
  description       = "Machines"
  ip_protocol       = "tcp"
  from_port         = 5000
  to_port           = 5001
  cidr_ipv4         = var.vpc_cidr
}

resource "aws_vpc_security_group_egress_rule" "to_nodes" {
  for_each                     = { api = aws_security_group.api.id, caches = aws_security_group.caches.id }
  security_group_id            = each.value
  description                  = "Machines"
  ip_protocol                  = "tcp"
  from_port                    = 30000
  to_port                      = 32767
  referenced_security_group_id = aws_security_group.nodes.id
}

resource "aws_lb" "api" {
  name               = "${var.prefix}-api"
  load_balancer_type = "network"
  internal           = false
  subnets            = [for zone in local.zones : aws_subnet.public[zone].id]
  security_groups    = [aws_security_group.api.id]
  # Its targets are in one zone; users connect through any.
  enable_cross_zone_load_balancing = true
}

resource "aws_lb" "caches" {
  name                             = "${var.prefix}-caches"
  load_balancer_type               = "network"
  internal                         = true
  subnets                          = [for zone in local.zones : aws_subnet.public[zone].id]
  security_groups                  = [aws_security_group.caches.id]
  enable_cross_zone_load_balancing = true
}

locals {
  entrances = {
    api       = { balancer = aws_lb.api.arn, listens_on = 80 }
    ghcr      = { balancer = aws_lb.caches.arn, listens_on = 5000 }
    dockerhub = { balancer = aws_lb.caches.arn, listens_on = 5001 }
  }
}

resource "aws_lb_target_group" "nodes" {
  for_each             = toset(["api", "ghcr", "dockerhub"])
  name                 = "${var.prefix}-${each.key}"
  port                 = local.fixed_ports[each.key]
  protocol             = "TCP"
  target_type          = "instance"
  vpc_id               = aws_vpc.main.id
  deregistration_delay = 60

  health_check {
    protocol            = "TCP"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_listener" "entrance" {
  for_each          = local.entrances
  load_balancer_arn = each.value.balancer
  port              = each.value.listens_on
  protocol          = "TCP"

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.nodes[each.key].arn
  }
}

# HTTPS only, no caching, all headers passed. WebSockets (SSH through HTTPS) need no setting.
resource "aws_cloudfront_distribution" "api" {
  # docs/operations/aws.md finds the distribution by this comment.
  comment         = "GPU Dev API Service - HTTPS endpoint"
  enabled         = true
  is_ipv6_enabled = true
  http_version    = "http2"
  price_class     = "PriceClass_100"
  aliases         = var.api_domain == "" ? [] : [var.api_domain]
  # Deployment takes a quarter of an hour; nothing needs to wait for it.
  wait_for_deployment = false

  origin {
    origin_id   = "api"
    domain_name = aws_lb.api.dns_name

    custom_origin_config {
      http_port                = 80
      https_port               = 443
      origin_protocol_policy   = "http-only"
      origin_ssl_protocols     = ["TLSv1.2"]
      origin_read_timeout      = 60
      origin_keepalive_timeout = 60
    }
  }

  default_cache_behavior {
    target_origin_id = "api"
    # No redirect: a client that used HTTP has already sent its key in the clear and should fail.
    viewer_protocol_policy = "https-only"
    allowed_methods        = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]
    cached_methods         = ["GET", "HEAD"]
    compress               = false
    # AWS's own policies "CachingDisabled" and "AllViewer".
    cache_policy_id          = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"
    origin_request_policy_id = "216adef6-2c7f-47e4-b989-5493ae7ebd47"
  }

  # By default CloudFront caches errors for ten seconds, by URL alone: one user's 404 would be served to another, and an
  # outage would last longer.
  dynamic "custom_error_response" {
    for_each = toset([400, 403, 404, 405, 414, 500, 501, 502, 503, 504])
    content {
      error_code            = custom_error_response.value
      error_caching_min_ttl = 0
    }
  }

  restrictions {
    geo_restriction {
      restriction_type = "none"
    }
  }

  viewer_certificate {
    cloudfront_default_certificate = var.api_domain == ""
    acm_certificate_arn            = var.api_domain == "" ? null : var.api_certificate_arn
    ssl_support_method             = var.api_domain == "" ? null : "sni-only"
    minimum_protocol_version       = var.api_domain == "" ? null : "TLSv1.2_2021"
  }

  lifecycle {
    precondition {
      condition     = (var.api_domain == "") == (var.api_certificate_arn == "")
      error_message = "Set both api_domain and api_certificate_arn, or neither."
    }
  }
}

locals {
  api_host = var.api_domain != "" ? var.api_domain : aws_cloudfront_distribution.api.domain_name
}
