# The logic of infra/aws without any cloud: `tofu init && tofu test`.
mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-west-1a", "us-west-1c"] }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { value = "ami-0123456789abcdef0" }
  }
  mock_data "aws_ec2_managed_prefix_list" {
    defaults = { id = "pl-0123456789abcdef0" }
  }
  mock_resource "aws_eks_cluster" {
    defaults = {
      arn                   = "arn:aws:eks:us-west-1:123456789012:cluster/mocked"
      endpoint              = "https://mocked.eks.amazonaws.com"
      certificate_authority = [{ data = "Q0E=" }]
      identity              = [{ oidc = [{ issuer = "https://oidc.eks.us-west-1.amazonaws.com/id/MOCKED" }] }]
    }
  }
  # The provider validates the format of these.
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/mocked" }
  }
  mock_resource "aws_iam_openid_connect_provider" {
    defaults = { arn = "arn:aws:iam::123456789012:oidc-provider/mocked" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:us-west-1:123456789012:key/mocked" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
  }
  mock_resource "aws_lb" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-west-1:123456789012:loadbalancer/net/mocked/1" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-west-1:123456789012:targetgroup/mocked/1" }
  }
}
mock_provider "null" {}
mock_provider "helm" {}

run "the_test_environment_is_the_default" {
  command = plan

  assert {
    condition     = keys(aws_autoscaling_group.gpu) == ["t4"] && aws_autoscaling_group.gpu["t4"].name == "pytorch-gpu-dev-gpu-nodes-t4"
    error_message = "One group, with the name that the reconciler looks for."
  }
  assert {
    condition     = aws_launch_template.gpu["t4"].instance_type == "g4dn.12xlarge" && aws_autoscaling_group.gpu["t4"].desired_capacity == 2
    error_message = "Two machines with T4."
  }
  assert {
    condition     = alltrue([for group in aws_autoscaling_group.gpu : group.min_size == group.desired_capacity && group.max_size == group.desired_capacity])
    error_message = "GPU groups have a fixed size."
  }
  assert {
    condition     = aws_autoscaling_group.cpu.name == "pytorch-gpu-dev-cpu-nodes" && aws_autoscaling_group.cpu.min_size == 1 && aws_autoscaling_group.cpu.max_size == 4 && aws_autoscaling_group.cpu.desired_capacity == 2
    error_message = "The control plane has 1 to 4 machines, initially 2."
  }
  assert {
    condition     = aws_eks_cluster.main.name == "pytorch-gpu-dev-cluster" && output.eks_cluster_name == "pytorch-gpu-dev-cluster"
    error_message = "The cluster's name."
  }
  assert {
    condition     = aws_cloudfront_distribution.api.comment == "GPU Dev API Service - HTTPS endpoint" && aws_cloudfront_distribution.api.default_cache_behavior[0].viewer_protocol_policy == "https-only"
    error_message = "CloudFront has the comment by which it is found, and serves HTTPS only."
  }
  assert {
    condition     = length(aws_cloudfront_distribution.api.custom_error_response) == 10 && alltrue([for one in aws_cloudfront_distribution.api.custom_error_response : one.error_caching_min_ttl == 0])
    error_message = "CloudFront does not cache errors."
  }
  assert {
    condition     = { for name, release in output.helm_releases : name => [release.version, release.namespace] if name != "gpu-dev" } == { gpu-operator = ["v25.3.3", "gpu-operator"], kube-prometheus-stack = ["67.9.0", "monitoring"] }
    error_message = "The Helm releases."
  }
  assert {
    condition     = yamldecode(output.chart_values).devServers.wholeNodeResources == []
    error_message = "No dev server requests a device that no machine has."
  }
  assert {
    condition     = output.supported_gpu_types == tolist(["t4"]) && output.placement_group_names == {}
    error_message = "Outputs are known at plan time."
  }
  assert {
    condition     = alltrue([for group in concat(values(aws_autoscaling_group.gpu), [aws_autoscaling_group.cpu]) : length([for tag in group.tag : tag if tag.key == "kubernetes.io/cluster/pytorch-gpu-dev-cluster" && tag.value == "owned" && tag.propagate_at_launch]) == 1])
    error_message = "Machines are tagged."
  }
}

run "no_zone_is_taken_that_eks_refuses" {
  command = plan

  assert {
    condition     = toset(data.aws_availability_zones.available.exclude_zone_ids) == toset(["use1-az3", "usw1-az2", "cac1-az3"])
    error_message = "EKS cannot use these zones."
  }
}

run "services_may_do_what_their_code_declares_and_only_to_what_is_ours" {
  command = plan

  assert {
    condition     = { for name, policy in local.service_policies : name => sort(flatten([for statement in jsondecode(policy).Statement : statement.Action])) } == { for name, actions in local.declared.aws.services : name => sort(actions) }
    error_message = "Exactly the declared actions."
  }
  assert {
    condition     = flatten([for statement in jsondecode(local.service_policies["toolbox"]).Statement : statement.Resource if contains(statement.Action, "autoscaling:StartInstanceRefresh")]) == [for names in ["gpu-nodes-*", "cpu-nodes*"] : "arn:aws:autoscaling:us-west-1:123456789012:autoScalingGroup:*:autoScalingGroupName/pytorch-gpu-dev-${names}"]
    error_message = "Operators replace the machines of our groups and no others."
  }
  assert {
    condition     = alltrue([for policy in values(local.service_policies) : alltrue([for statement in jsondecode(policy).Statement : try(statement.Condition.Null["aws:ResourceTag/gpu-dev-user"], "") == "false" if contains(statement.Action, "ec2:DeleteVolume")])])
    error_message = "Only tagged resources can be deleted."
  }
  assert {
    condition     = alltrue([for policy in values(local.service_policies) : alltrue([for statement in jsondecode(policy).Statement : try(statement.Condition.StringEqualsIfExists["aws:ResourceTag/gpu-dev-environment"], "") == "pytorch-gpu-dev" if contains(statement.Action, "ec2:DeleteVolume")])])
    error_message = "Resources of other environments cannot be deleted."
  }
}

run "the_old_variables_still_mean_what_they_did" {
  command = plan

  variables {
    instance_type      = "p5.48xlarge"
    gpu_instance_count = 5
  }

  assert {
    condition     = { for name, group in aws_autoscaling_group.gpu : name => group.desired_capacity } == { h100 = 5 }
    error_message = "Five machines with H100."
  }
}

run "groups_are_known_by_their_names" {
  command = plan

  variables {
    gpu_groups = {
      t4            = { count = 1 }
      h100          = { count = 2, efa = true, zone = "us-west-1c" }
      h100-reserved = { count = 3, capacity_reservation_id = "cr-0123456789abcdef0" }
      a100-spot     = { count = 4, spot = true }
    }
  }

  assert {
    condition = { for name, group in aws_autoscaling_group.gpu : group.name => group.desired_capacity } == {
      pytorch-gpu-dev-gpu-nodes-t4            = 1
      pytorch-gpu-dev-gpu-nodes-h100          = 2
      pytorch-gpu-dev-gpu-nodes-h100-reserved = 3
      pytorch-gpu-dev-gpu-nodes-a100-spot     = 4
    }
    error_message = "Each group has its own name and size."
  }
  assert {
    condition     = output.supported_gpu_types == tolist(["a100", "h100", "t4"])
    error_message = "A suffix does not change the type."
  }
  assert {
    condition     = keys(aws_placement_group.gpu) == ["h100"] && aws_launch_template.gpu["h100"].network_interfaces[0].interface_type == "efa"
    error_message = "EFA comes with a placement group."
  }
  assert {
    condition     = { for name, template in aws_launch_template.gpu : name => strcontains(base64decode(template.user_data), "gpu-dev/efa=true") && strcontains(base64decode(template.user_data), "vm.nr_hugepages=5128") } == { t4 = false, h100 = true, h100-reserved = false, a100-spot = false }
    error_message = "Machines with EFA have the label and huge pages."
  }
  assert {
    condition     = output.helm_releases["aws-efa-k8s-device-plugin"] == { chart = "aws-efa-k8s-device-plugin", version = "v0.5.20", namespace = "kube-system" } && yamldecode(output.chart_values).devServers.wholeNodeResources == ["vpc.amazonaws.com/efa", "hugepages-2Mi"]
    error_message = "The kubelet knows the devices, and dev servers on whole machines get them."
  }
  assert {
    condition     = aws_launch_template.gpu["a100-spot"].instance_market_options[0].market_type == "spot" && length(aws_launch_template.gpu["t4"].instance_market_options) == 0
    error_message = "Spot only where it is set."
  }
  assert {
    condition     = aws_launch_template.gpu["h100-reserved"].capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id == "cr-0123456789abcdef0"
    error_message = "The reservation is used."
  }
}

run "a_second_environment_in_the_same_region_shares_no_name_with_the_first" {
  command = plan

  variables {
    prefix              = "team-b"
    pull_through_caches = false
    gpu_groups          = { h100 = { count = 1, efa = true } }
  }

  assert {
    condition = alltrue([for name in concat(
      [aws_eks_cluster.main.name, aws_cloudwatch_log_group.cluster.name, aws_kms_alias.main.name, aws_ecr_repository.custom.name],
      [aws_iam_role.cluster.name, aws_iam_role.node.name, aws_iam_role.ebs_csi.name, aws_iam_instance_profile.node.name],
      [aws_lb.api.name, aws_lb.caches.name, aws_autoscaling_group.cpu.name, aws_launch_template.cpu.name],
      [for one in aws_iam_role.service : one.name], [for one in aws_ecr_repository.image : one.name], [for one in aws_lb_target_group.nodes : one.name],
      [for one in aws_autoscaling_group.gpu : one.name], [for one in aws_launch_template.gpu : one.name], [for one in aws_placement_group.gpu : one.name],
    ) : strcontains(name, "team-b")])
    error_message = "Every name has the prefix."
  }
  assert {
    condition     = aws_eks_cluster.main.name == "team-b-cluster" && length(aws_ecr_pull_through_cache_rule.cache) == 0
    error_message = "The cluster has the prefix, and the caches are shared."
  }
}

run "test_and_production_share_no_name_in_one_account" {
  command = plan

  variables {
    aws_region = "us-east-2"
  }

  assert {
    condition     = alltrue([for name in concat([aws_iam_role.cluster.name, aws_iam_role.node.name, aws_iam_role.ebs_csi.name, aws_iam_instance_profile.node.name], [for role in aws_iam_role.service : role.name]) : startswith(name, "pytorch-gpu-dev-us-east-2-") && length(name) <= 64])
    error_message = "IAM is global, so its names have the region."
  }
  assert {
    condition     = aws_eks_cluster.main.name == "pytorch-gpu-dev-cluster" && aws_ecr_repository.custom.name == "gpu-dev-custom-images"
    error_message = "Regional names have no region."
  }
}

run "a_prefix_that_would_be_too_long_for_a_load_balancer_is_refused" {
  command = plan

  variables {
    prefix = "twenty-three-characters"
  }

  expect_failures = [var.prefix]
}

run "a_group_that_is_named_after_no_type_is_refused" {
  command = plan

  variables {
    gpu_groups = { h1000 = { count = 1 } }
  }

  expect_failures = [aws_launch_template.gpu]
}

run "a_zone_elsewhere_is_refused" {
  command = plan

  variables {
    gpu_groups = { h100 = { count = 1, zone = "us-east-2a" } }
  }

  expect_failures = [aws_launch_template.gpu]
}

run "a_machine_of_no_type_is_refused" {
  command = plan

  variables {
    instance_type = "m5.large"
  }

  expect_failures = [aws_launch_template.gpu]
}

run "a_primary_zone_elsewhere_is_refused" {
  command = plan

  variables {
    primary_zone = "us-east-2a"
  }

  expect_failures = [data.aws_availability_zones.available]
}

run "a_name_that_no_node_could_bear_is_refused" {
  command = plan

  variables {
    gpu_groups = { h100-a-name-of-more-than-fifty-letters-for-the-label-of-nodes = { count = 1 } }
  }

  expect_failures = [var.gpu_groups]
}

run "what_makes_no_sense_is_refused" {
  command = plan

  variables {
    kubernetes_version = "2"
    cluster_name       = "-x"
    vpc_cidr           = "10.0.0.0/24"
    gpu_node_disk_gb   = 5
    aws_login_accounts = ["ada"]
    chart_values       = "- not a name"
  }

  expect_failures = [var.kubernetes_version, var.cluster_name, var.vpc_cidr, var.gpu_node_disk_gb, var.aws_login_accounts, var.chart_values]
}

run "what_contradicts_itself_is_refused" {
  command = plan

  variables {
    aws_region         = "nowhere"
    gpu_instance_count = -1
    gpu_groups         = { h100 = { count = 1, spot = true, capacity_reservation_id = "cr-0123456789abcdef0" } }
  }

  expect_failures = [var.aws_region, var.gpu_instance_count, var.gpu_groups]
}
