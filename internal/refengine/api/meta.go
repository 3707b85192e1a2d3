package api

import (
	"mime"
	"net/http"
)

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	created := int(s.now().Unix())
	b := append([]byte(nil), `{"object":"list","data":[{"id":`...)
	b = appendString(b, s.opts.ModelName)
	b = append(b, `,"object":"model","created":`...)
	b = appendInt(b, created)
	b = append(b, `,"owned_by":"vllm","root":`...)
	b = appendString(b, s.opts.Root)
	b = append(b, `,"parent":null,"max_model_len":`...)
	b = appendInt(b, s.maxModelLen)
	b = append(b, `,"permission":[{"id":"modelperm-`...)
	b = append(b, s.randomHex(16)...)
	b = append(b, `","object":"model_permission","created":`...)
	b = appendInt(b, created)
	b = append(b, `,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,`+
		`"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}]}`...)
	writeJSON(w, http.StatusOK, b)
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	b := append([]byte(nil), `{"version":`...)
	writeJSON(w, http.StatusOK, append(appendString(b, s.rel.version), '}'))
}

// health says 200 until the engine is dead: parked requests, leaks and failing pulls do not show here.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if s.opts.Engine.Snapshot().Dead {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) serverLoad(w http.ResponseWriter, _ *http.Request) {
	b := append([]byte(nil), `{"server_load":`...)
	writeJSON(w, http.StatusOK, append(appendInt(b, int(s.load.Load())), '}'))
}

// isJSON reports whether a request says that its body is JSON; vLLM reads no other.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json"
}
