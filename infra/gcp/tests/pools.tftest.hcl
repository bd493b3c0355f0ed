# The logic of infra/gcp without any cloud: `tofu init && tofu test`.
mock_provider "google" {
  mock_data "google_client_config" {
    defaults = { access_token = "mocked" }
  }
  mock_resource "google_container_cluster" {
    defaults = {
      id       = "projects/my-project/locations/us-central1-a/clusters/mocked"
      endpoint = "192.0.2.1"
    }
  }
  # The provider validates the format of these.
  mock_resource "google_service_account" {
    defaults = {
      name   = "projects/my-project/serviceAccounts/mocked@my-project.iam.gserviceaccount.com"
      email  = "mocked@my-project.iam.gserviceaccount.com"
      member = "serviceAccount:mocked@my-project.iam.gserviceaccount.com"
    }
  }
  mock_resource "google_project_iam_custom_role" {
    defaults = { id = "projects/my-project/roles/mocked" }
  }
}
mock_provider "null" {}
mock_provider "helm" {}

variables {
  project    = "my-project"
  api_domain = "gpu.example.com"
}

run "the_test_environment_is_the_default" {
  command = plan

  assert {
    condition     = { for name, pool in google_container_node_pool.gpu : name => pool.node_count } == { t4 = 2 }
    error_message = "Two machines with T4."
  }
  assert {
    condition     = google_container_node_pool.gpu["t4"].node_config[0].machine_type == "n1-standard-32" && google_container_node_pool.gpu["t4"].node_config[0].labels.GpuType == "t4"
    error_message = "Nodes are labelled with their type."
  }
  assert {
    condition     = google_container_node_pool.cpu.autoscaling[0].total_min_node_count == 1 && google_container_node_pool.cpu.autoscaling[0].total_max_node_count == 4 && google_container_node_pool.cpu.initial_node_count == 2
    error_message = "The control plane has 1 to 4 machines, initially 2."
  }
  assert {
    condition     = output.api_service_url == "https://gpu.example.com" && output.supported_gpu_types == tolist(["t4"])
    error_message = "Outputs are known at plan time."
  }
}

run "pools_are_known_by_their_names" {
  command = plan

  variables {
    gpu_pools = {
      t4            = { count = 1 }
      h100          = { count = 2, placement = true, zone = "us-central1-c" }
      h100-reserved = { count = 3, reservation = "ours" }
      a100-spot     = { count = 4, spot = true }
    }
  }

  assert {
    condition = { for name, pool in google_container_node_pool.gpu : pool.name => pool.node_count } == {
      pytorch-gpu-dev-t4            = 1
      pytorch-gpu-dev-h100          = 2
      pytorch-gpu-dev-h100-reserved = 3
      pytorch-gpu-dev-a100-spot     = 4
    }
    error_message = "Each pool has its own name and size."
  }
  assert {
    condition     = output.supported_gpu_types == tolist(["a100", "h100", "t4"])
    error_message = "A suffix does not change the type."
  }
  assert {
    condition     = google_container_node_pool.gpu["a100-spot"].node_config[0].spot && !google_container_node_pool.gpu["t4"].node_config[0].spot
    error_message = "Spot only where it is set."
  }
  assert {
    condition     = google_container_node_pool.gpu["h100-reserved"].node_config[0].reservation_affinity[0].values == toset(["ours"])
    error_message = "The reservation is used."
  }
}

run "a_prefix_that_would_be_too_long_for_an_account_is_refused" {
  command = plan

  variables {
    prefix = "the-other-team-of-ours"
  }

  expect_failures = [var.prefix]
}

run "a_second_environment_in_the_same_project_shares_no_name_with_the_first" {
  command = plan

  variables {
    prefix = "other-team-with-name"
  }

  assert {
    condition = alltrue([for name in concat(
      [google_container_cluster.main.name, google_compute_network.main.name, google_compute_subnetwork.main.name, google_compute_global_address.api.name],
      [google_compute_managed_ssl_certificate.api.name, google_compute_firewall.ssh[0].name, google_service_account.node.account_id, google_container_node_pool.cpu.name],
      [google_artifact_registry_repository.ours.repository_id, google_artifact_registry_repository.custom.repository_id, google_artifact_registry_repository.dockerhub.repository_id],
      [for one in google_service_account.service : one.account_id], [for one in google_container_node_pool.gpu : one.name],
      [for one in google_project_iam_custom_role.service : replace(one.role_id, "_", "-")],
    ) : startswith(name, "other-team-with-name")])
    error_message = "Every name has the prefix."
  }
  assert {
    condition     = length(distinct([for one in google_service_account.service : one.account_id])) == length(google_service_account.service) && alltrue([for one in google_service_account.service : length(one.account_id) <= 30])
    error_message = "Account names are short enough and unique."
  }
}

run "a_pool_that_is_named_after_no_type_is_refused" {
  command = plan

  variables {
    gpu_pools = { h1000 = { count = 1 } }
  }

  expect_failures = [google_container_node_pool.gpu]
}

run "what_makes_no_sense_is_refused" {
  command = plan

  variables {
    cluster_name = "X"
    chart_values = "- not a name"
    gpu_pools    = { h100-with-a-name-that-is-too-long = { count = 1 } }
  }

  expect_failures = [var.cluster_name, var.chart_values, var.gpu_pools]
}

run "what_contradicts_itself_is_refused" {
  command = plan

  variables {
    gpu_pools = { h100 = { count = 1, spot = true, reservation = "ours" } }
  }

  expect_failures = [var.gpu_pools]
}
