{{/* Parts of the network policies, and of services. */}}

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

{{/* Whoever gathers metrics, where somebody does. */}}
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

{{/* To dev servers, for who carries ssh there: by their nodes' ports, which some networks see as the pods' own. */}}
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

{{/* The port of the nodes that a service always has: (dict "type" TYPE "nodePort" PORT). */}}
{{- define "gpu-dev.node-port" -}}
{{- if and (eq .type "NodePort") .nodePort -}}
nodePort: {{ .nodePort }}
{{- end }}
{{- end }}

{{/* What ssh through HTTPS and Jupyter need of an Ingress (docs/operations/reverse-proxies.md), as far as the controller
does otherwise by itself. Only those whose name says which one it is can be told. */}}
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
