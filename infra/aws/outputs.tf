output "vpc_id" {
  description = "The private network."
  value       = aws_vpc.main.id
}

output "subnet_id" {
  description = "The subnet of the primary zone."
  value       = aws_subnet.public[local.primary_zone].id
}

output "subnet_ids" {
  description = "Subnets by zone."
  value       = { for zone, subnet in aws_subnet.public : zone => subnet.id }
}

output "eks_cluster_name" {
  value = aws_eks_cluster.main.name
}

output "eks_cluster_endpoint" {
  value = aws_eks_cluster.main.endpoint
}

output "eks_cluster_arn" {
  value = aws_eks_cluster.main.arn
}

output "placement_group_names" {
  description = "Placement groups by the name of their group of GPU machines."
  value       = { for name, group in aws_placement_group.gpu : name => group.name }
}

output "security_group_id" {
  description = "The security group of the machines."
  value       = aws_security_group.nodes.id
}

output "supported_gpu_types" {
  value = sort(distinct([for group in values(local.gpu_groups) : group.type if group.type != null]))
}

output "gpu_node_groups" {
  description = "Names of the groups of GPU machines, by key."
  value       = { for name, group in aws_autoscaling_group.gpu : name => group.name }
}

output "cli_config" {
  description = "Configuration for users: tofu output -raw cli_config | gpu-dev config import -"
  value = jsonencode({
    api_url      = "https://${local.api_host}"
    cluster_name = aws_eks_cluster.main.name
    region       = var.aws_region
  })
}

output "ecr_repository_url" {
  description = "Repository for users' own images."
  value       = aws_ecr_repository.custom.repository_url
}

output "ecr_pull_through_cache_urls" {
  value = { for name in keys(local.cached_registries) : name => "${local.registry}/${name}" }
}

output "api_service_url" {
  value = "https://${local.api_host}"
}

output "api_service_url_loadbalancer" {
  description = "Plain HTTP, from loadbalancer_cidrs only."
  value       = "http://${aws_lb.api.dns_name}"
}

output "api_service_loadbalancer_url" {
  description = "The same as api_service_url_loadbalancer."
  value       = "http://${aws_lb.api.dns_name}"
}

output "service_role_arns" {
  value = { for name, role in aws_iam_role.service : name => role.arn }
}

output "chart_values" {
  description = "Values of the release of charts/gpu-dev-server, as YAML."
  value       = yamlencode(local.chart_values)
}

output "helm_releases" {
  description = "Helm releases: name, chart, version, namespace."
  value       = module.releases.installed
}
