variable "chart" {
  description = "The folder of charts/gpu-dev-server."
  type        = string
}

variable "entrance_chart" {
  description = "The folder of the chart with the services at fixed ports. Empty: none."
  type        = string
  default     = ""
}

variable "chart_values" {
  description = "Values of the first, as YAML; the last is the strongest."
  type        = list(string)
}

variable "fixed_ports" {
  type = map(number)
}

variable "gpu_operator" {
  description = "Whether the machines need NVIDIA's operator: EKS does, GKE brings its own."
  type        = bool
  default     = true
}
