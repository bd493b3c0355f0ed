{{/* Parts of network policies and services. */}}

{{- define "gpu-dev.policy" }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "gpu-dev.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "gpu-dev.selector" . | nindent 6 }}
{{- end }}

{{/* Peers that may scrape metrics. */}}
{{- define "gpu-dev.metrics-ingress" }}
{{- if .Values.monitoring.enabled }}
- from:
    {{- if .Values.monitoring.scrapeFrom }}
    {{- toYaml .Values.monitoring.scrapeFrom | nindent 4 }}
    {{- else }}
    - namespaceSelector:
        matchExpressions:
          - {key: kubernetes.io/metadata.name, operator: NotIn, values: [{{ .Values.namespaces.workloads }}]}
    {{- end }}
  ports:
    - {protocol: TCP, port: 9090}
{{- end }}
{{- end }}

{{- define "gpu-dev.dns-egress" }}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{- define "gpu-dev.database-egress" }}
{{- if .Values.postgres.enabled }}
- to:
    - podSelector:
        matchLabels:
          {{- include "gpu-dev.selector" (dict "root" . "app" "postgres") | nindent 10 }}
  ports:
    - {protocol: TCP, port: 5432}
{{- else }}
- ports:
    - {protocol: TCP, port: {{ include "gpu-dev.database-port" . }}}
{{- end }}
{{- end }}

{{- define "gpu-dev.service-egress" }}
{{- include "gpu-dev.dns-egress" . }}
{{- include "gpu-dev.database-egress" . }}
# The Kubernetes API, clouds, identity providers, GitHub.
- ports:
    - {protocol: TCP, port: 443}
    - {protocol: TCP, port: 6443}
{{- if eq .Values.cloudProvider.name "gcp" }}
# Workload Identity's tokens.
- to:
    - ipBlock: {cidr: 169.254.169.254/32}
    - ipBlock: {cidr: 169.254.169.252/32}
  ports:
    - {protocol: TCP, port: 80}
    - {protocol: TCP, port: 988}
{{- end }}
{{- if eq .Values.cloudProvider.name "aws" }}
# EKS Pod Identity's agent.
- to:
    - ipBlock: {cidr: 169.254.170.23/32}
  ports:
    - {protocol: TCP, port: 80}
{{- end }}
{{- with .Values.networkPolicies.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Egress to dev servers for services that proxy ssh: node ports, which some networks see as the pods' own ports. */}}
{{- define "gpu-dev.ssh-egress" }}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ .Values.namespaces.workloads }}
  ports:
    - {protocol: TCP, port: 22}
- ports:
    - {protocol: TCP, port: 30000, endPort: 32767}
{{- end }}

{{/* The fixed node port of a service: (dict "type" TYPE "nodePort" PORT). */}}
{{- define "gpu-dev.node-port" -}}
{{- if and (eq .type "NodePort") .nodePort -}}
nodePort: {{ .nodePort }}
{{- end }}
{{- end }}

{{/* Ingress annotations that ssh through HTTPS and Jupyter need (docs/operations/reverse-proxies.md), where the controller's
defaults differ. Only for controllers that the class name identifies. */}}
{{- define "gpu-dev.ingress-annotations" -}}
{{- if eq .Values.apiService.ingress.className "nginx" }}
nginx.ingress.kubernetes.io/proxy-body-size: "0"
nginx.ingress.kubernetes.io/proxy-buffering: "off"
nginx.ingress.kubernetes.io/proxy-request-buffering: "off"
{{- end }}
{{- end }}

{{- define "gpu-dev.backend-annotations" -}}
{{- if and .Values.apiService.ingress.enabled (eq "gce" (index .Values.apiService.ingress.annotations "kubernetes.io/ingress.class" | default "")) }}
cloud.google.com/backend-config: '{"default": "api-service"}'
{{- end }}
{{- end }}
