{{- define "serve.selector" -}}
app.kubernetes.io/name: gemlet-serve
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "serve.labels" -}}
{{ include "serve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "serve.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "serve.tls" -}}
{{- eq .Values.tls.certificates "secret" | ternary .Values.tls.secret (printf "%s-tls" .Release.Name) -}}
{{- end -}}

{{- define "serve.tokens" -}}
{{- .Values.tokens.secret | default (printf "%s-tokens" .Release.Name) -}}
{{- end -}}

{{- /* What clients call the servers: NAME for any of them, NAME-each for all of them, one address each. */ -}}
{{- define "serve.hosts" -}}
{{- $namespace := .Release.Namespace -}}
{{- $hosts := list -}}
{{- range $name := list .Release.Name (printf "%s-each" .Release.Name) -}}
{{- $hosts = concat $hosts (list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace)) -}}
{{- end -}}
{{- concat $hosts .Values.tls.names | toJson -}}
{{- end -}}
