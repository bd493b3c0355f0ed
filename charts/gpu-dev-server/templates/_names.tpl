{{/* Who is who: labels, names, images. */}}

{{- define "gpu-dev.labels" -}}
app.kubernetes.io/name: gpu-dev-server
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gpu-dev
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* By (dict "root" $ "app" "api-service"): what selectors are made of never changes within a release. */}}
{{- define "gpu-dev.selector" -}}
app: {{ .app }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "gpu-dev.app-labels" -}}
app: {{ .app }}
app.kubernetes.io/component: {{ .app }}
{{ include "gpu-dev.labels" .root }}
{{- end }}

{{/* metadata of (dict "root" $ "app" APP "name" NAME): everything but what belongs to no namespace. */}}
{{- define "gpu-dev.metadata" -}}
name: {{ .name | default .app }}
namespace: {{ .root.Values.namespaces.controlplane }}
labels:
  {{- include "gpu-dev.app-labels" . | nindent 2 }}
{{- end }}

{{/* A service's own image, filled up with the one they share: (dict "root" $ "image" .Values.apiService.image). */}}
{{- define "gpu-dev.server-image" -}}
{{- $shared := .root.Values.global.image -}}
{{- $is_shared := empty .image.repository -}}
{{- $tag := .image.tag | default ($is_shared | ternary $shared.tag "") | default .root.Chart.AppVersion -}}
{{- $digest := .image.digest | default (and $is_shared (empty .image.tag) | ternary $shared.digest "") -}}
{{- include "gpu-dev.image" (dict "repository" (.image.repository | default $shared.repository) "tag" $tag "digest" $digest) -}}
{{- end }}

{{- define "gpu-dev.image" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end -}}
{{- end }}

{{- define "gpu-dev.pull-policy" -}}
{{ .image.pullPolicy | default .root.Values.global.image.pullPolicy }}
{{- end }}

{{/* Whether an object is there that is not of this release: then it is taken as it is. (dict "root" $ "found" OBJECT) */}}
{{- define "gpu-dev.is-foreign" -}}
{{- if .found -}}
{{- $notes := .found.metadata.annotations | default dict -}}
{{- $is_ours := and (eq (index $notes "meta.helm.sh/release-name" | default "") .root.Release.Name) (eq (index $notes "meta.helm.sh/release-namespace" | default "") .root.Release.Namespace) -}}
{{- if not $is_ours }}foreign{{ end -}}
{{- end -}}
{{- end }}

{{- define "gpu-dev.database-host" -}}
{{- if .Values.postgres.enabled -}}
postgres-primary
{{- else -}}
{{ .Values.postgres.external.host }}
{{- end -}}
{{- end }}

{{- define "gpu-dev.database-port" -}}
{{ .Values.postgres.enabled | ternary 5432 .Values.postgres.external.port | int }}
{{- end }}

{{- define "gpu-dev.database-secret" -}}
{{ .Values.postgres.auth.existingSecret | default "postgres-credentials" }}
{{- end }}

{{- define "gpu-dev.has-efs" -}}
{{- if and (eq .Values.cloudProvider.name "aws") .Values.cloudProvider.aws.efsFileSystemId (not .Values.devServers.sharedStorageClass) }}yes{{ end -}}
{{- end }}

{{/*
A claim: (dict "root" $ "app" APP "name" NAME "storage" STORAGE). Without a class it has the cluster's default. That of a
claim that is there can never be changed, so it stays, also where an upgrade comes without the cloud's own values.
*/}}
{{- define "gpu-dev.claim" -}}
{{- $there := lookup "v1" "PersistentVolumeClaim" .root.Values.namespaces.controlplane .name }}
{{- $class := .storage.class | default .root.Values.storage.class }}
{{- if $there }}
{{- $class = $there.spec.storageClassName | default "" }}
{{- end }}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "gpu-dev.metadata" . | nindent 2 }}
  annotations:
    # What people stored outlives the release.
    helm.sh/resource-policy: keep
spec:
  accessModes: [ReadWriteOnce]
  {{- with $class }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .storage.size }}
{{- end }}
