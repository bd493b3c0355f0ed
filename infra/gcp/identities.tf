# An account for each service that calls the cloud, with a role of exactly the permissions that its code
# declares (../declared.json, written by tools/infra-declarations; a test compares).
resource "google_service_account" "service" {
  for_each = local.declared.gcp.services
  # Only the last part of the service's name: reservation-processor would be too long with most prefixes.
  account_id   = "${var.prefix}-${reverse(split("-", each.key))[0]}"
  display_name = "GPU dev servers: ${each.key}"
}

resource "google_project_iam_custom_role" "service" {
  for_each    = local.declared.gcp.services
  role_id     = replace("${var.prefix}-${each.key}", "-", "_")
  title       = "GPU dev servers: ${each.key}"
  permissions = each.value
}

resource "google_project_iam_member" "service" {
  for_each = local.declared.gcp.services
  project  = var.project
  role     = google_project_iam_custom_role.service[each.key].id
  member   = google_service_account.service[each.key].member
}

resource "google_service_account_iam_member" "service" {
  for_each           = local.declared.gcp.services
  service_account_id = google_service_account.service[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[gpu-controlplane/${each.key}]"

  # The workload identity pool is created with the cluster.
  depends_on = [google_container_cluster.main]
}
