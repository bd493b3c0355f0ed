# All variables. Only project and api_domain have no default.

variable "project" {
  description = "The id of the Google Cloud project."
  type        = string
}

variable "environment" {
  type    = string
  default = "test"
}

variable "prefix" {
  description = "Prefix of all names."
  type        = string
  default     = "pytorch-gpu-dev"

  validation {
    # The longest name with this prefix is a service account's, which is limited to 30 characters.
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.prefix))
    error_message = "Invalid prefix: expected 3 to 20 lower-case letters, digits and dashes."
  }
}

variable "region" {
  type    = string
  default = "us-central1"
}

variable "primary_zone" {
  description = "The zone of the control plane, and the default zone of GPU pools. Do not change it later: disks cannot leave their zone."
  type        = string
  default     = "us-central1-a"
}

variable "network_cidr" {
  type    = string
  default = "10.0.0.0/20"
}

variable "cluster_name" {
  description = "The cluster's name. Empty: PREFIX-cluster, by default pytorch-gpu-dev-cluster. It cannot be changed later."
  type        = string
  default     = ""

  validation {
    condition     = var.cluster_name == "" || can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", var.cluster_name))
    error_message = "Invalid cluster name: expected up to 40 lower-case letters, digits and dashes."
  }
}

variable "deletion_protection" {
  description = "Protects the cluster from deletion. To remove the environment, set it to false, apply, destroy."
  type        = bool
  default     = true
}

variable "kubernetes_api_cidrs" {
  description = "Networks that can reach the Kubernetes API."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "gpu_pools" {
  description = <<-END
    Pools of GPU machines by name: a GPU type (h100), or one with your own suffix (h100-reserved). Pools are
    independent: adding, removing or reordering one changes no other.
    machine_type  empty: the type's default
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
    # With the prefix it is the name of a node pool, which is limited to 40 characters.
    condition     = alltrue([for name in keys(var.gpu_pools) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", name)) && length("${var.prefix}-${name}") <= 40])
    error_message = "Invalid pool name: expected lower-case letters, digits and dashes, at most 40 with the prefix."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : pool.count >= 0 && floor(pool.count) == pool.count])
    error_message = "Invalid number of machines in a pool (expected a whole number of 0 or more)."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : !(pool.spot && pool.reservation != "")])
    error_message = "A pool cannot be both spot and reserved."
  }
}

variable "gpu_node_disk_gb" {
  type    = number
  default = 500
}

variable "cpu_machine_type" {
  description = "The machine type of the control plane."
  type        = string
  default     = "n2-standard-4"
}

variable "ssh_cidrs" {
  description = "Networks that can reach dev servers by SSH at the nodes' addresses. Empty: only through the API."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "api_domain" {
  description = "The domain name of the API. Point it to the output api_address in DNS."
  type        = string
}

variable "chart_values" {
  description = "YAML with additional values of charts/gpu-dev-server; they override those derived here."
  type        = string
  default     = ""

  validation {
    condition     = var.chart_values == "" || can(keys(yamldecode(var.chart_values)))
    error_message = "Invalid chart values (expected a YAML mapping)."
  }
}
