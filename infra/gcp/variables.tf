# Everything that can be set. Only the project has no default.

variable "project" {
  description = "The id of the Google Cloud project."
  type        = string
}

variable "environment" {
  type    = string
  default = "test"
}

variable "prefix" {
  description = "Begins the names of everything."
  type        = string
  default     = "pytorch-gpu-dev"

  validation {
    # The longest name that begins with it is a service account's, which may have 30 characters.
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.prefix))
    error_message = "The prefix must be 3 to 20 lower-case letters, digits and dashes."
  }
}

variable "region" {
  type    = string
  default = "us-central1"
}

variable "primary_zone" {
  description = "Of the control plane, and of GPU pools that name no other. Disks cannot leave their zone, so it should stay as it is."
  type        = string
  default     = "us-central1-a"
}

variable "network_cidr" {
  type    = string
  default = "10.0.0.0/20"
}

variable "cluster_name" {
  description = "Empty: PREFIX-cluster, so pytorch-gpu-dev-cluster. It cannot be changed afterwards."
  type        = string
  default     = ""

  validation {
    condition     = var.cluster_name == "" || can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", var.cluster_name))
    error_message = "The cluster's name must be up to 40 lower-case letters, digits and dashes."
  }
}

variable "deletion_protection" {
  description = "Whether Google refuses to delete the cluster. To end the environment: false, apply, destroy."
  type        = bool
  default     = true
}

variable "kubernetes_api_cidrs" {
  description = "From where the API of Kubernetes is reached."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "gpu_pools" {
  description = <<-END
    Pools of GPU machines by name: a GPU type (h100), or one with a suffix of your choice (h100-reserved). Each is made by
    itself: adding, removing or reordering pools touches no other.
    machine_type  empty: the type's own
    count         machines; the size is fixed
    zone          empty: primary_zone
    reservation   the name of a reservation
    spot          true: spot machines
    placement     true: close to each other
  END
  type = map(object({
    machine_type = optional(string, "")
    count        = number
    zone         = optional(string, "")
    reservation  = optional(string, "")
    spot         = optional(bool, false)
    placement    = optional(bool, false)
  }))
  default = { t4 = { count = 2 } }

  validation {
    # With the prefix it is the name of a node pool, which may have 40 characters.
    condition     = alltrue([for name in keys(var.gpu_pools) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", name)) && length("${var.prefix}-${name}") <= 40])
    error_message = "The name of a pool must be of lower-case letters, digits and dashes, and at most 40 with the prefix."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : pool.count >= 0 && floor(pool.count) == pool.count])
    error_message = "The number of machines of every pool must be 0 or a positive whole number."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : !(pool.spot && pool.reservation != "")])
    error_message = "A pool is either of spot machines or of reserved ones."
  }
}

variable "gpu_node_disk_gb" {
  type    = number
  default = 500
}

variable "cpu_machine_type" {
  description = "Of the machines of the control plane."
  type        = string
  default     = "n2-standard-4"
}

variable "ssh_cidrs" {
  description = "From where dev servers are reached by SSH at the nodes' addresses. Empty: only through the API."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "api_domain" {
  description = "The name people reach the API by; its address (output api_address) must be entered for it in DNS."
  type        = string
}

variable "chart_values" {
  description = "YAML with further values of charts/gpu-dev-server; stronger than those derived here."
  type        = string
  default     = ""

  validation {
    condition     = var.chart_values == "" || can(keys(yamldecode(var.chart_values)))
    error_message = "The chart's values must be a YAML document with names and values."
  }
}
