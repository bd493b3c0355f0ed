output "network_id" {
  value = google_compute_network.main.id
}

output "subnet_id" {
  value = google_compute_subnetwork.main.id
}

output "gke_cluster_name" {
  value = google_container_cluster.main.name
}

output "gke_cluster_endpoint" {
  value = google_container_cluster.main.endpoint
}

output "supported_gpu_types" {
  value = sort(distinct([for pool in values(local.gpu_pools) : pool.type if pool.type != null]))
}

output "gpu_node_pools" {
  value = { for name, pool in google_container_node_pool.gpu : name => pool.name }
}

output "api_address" {
  description = "The address that api_domain must resolve to."
  value       = google_compute_global_address.api.address
}

output "api_service_url" {
  value = "https://${var.api_domain}"
}

output "cli_config" {
  description = "Configuration for users: tofu output -raw cli_config | gpu-dev config import -"
  value = jsonencode({
    api_url      = "https://${var.api_domain}"
    cluster_name = google_container_cluster.main.name
    region       = var.region
  })
}

output "artifact_registry_url" {
  description = "Repository for users' own images."
  value       = "${local.registry}/${var.project}/${google_artifact_registry_repository.custom.repository_id}"
}

output "pull_through_cache_urls" {
  value = { dockerhub = "${local.registry}/${var.project}/${google_artifact_registry_repository.dockerhub.repository_id}" }
}

output "chart_values" {
  description = "Values of the release of charts/gpu-dev-server, as YAML."
  value       = yamlencode(local.chart_values)
}

output "helm_releases" {
  description = "Helm releases: name, chart, version, namespace."
  value       = module.releases.installed
}
