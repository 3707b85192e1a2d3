package api

import (
	"encoding/json"
	"net/http"
	"sync"
)

// Bounds on what is kept for previous_response_id. vLLM keeps all of it for ever.
const (
	maxStoredResponses = 1024
	maxStoredBytes     = 64 << 20
)

// responseStore keeps responses by id; the oldest make room. The zero value is empty.
type responseStore struct {
	mu    sync.Mutex
	byID  map[string]*storedResponse
	order []string // ids, oldest first
	bytes int
}

// storedResponse is a response and the conversation up to it.
type storedResponse struct {
	object   []byte            // the response as it was sent
	messages []json.RawMessage // chat messages of its prompt
	texts    []string          // its output messages: reasoning and tool calls are not remembered, as in vLLM
}

// size is in bytes. Messages that several responses share are counted for each.
func (r *storedResponse) size() int {
	n := len(r.object)
	for _, m := range r.messages {
		n += len(m)
	}
	for _, t := range r.texts {
		n += len(t)
	}
	return n
}

func (s *responseStore) get(id string) *storedResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// put keeps r, unless it alone is too large.
func (s *responseStore) put(id string, r *storedResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.size() > maxStoredBytes {
		return
	}
	if s.byID == nil {
		s.byID = make(map[string]*storedResponse)
	}
	if old := s.byID[id]; old != nil { // the client chose the id
		s.bytes -= old.size()
	} else {
		s.order = append(s.order, id)
	}
	s.byID[id] = r
	s.bytes += r.size()
	for len(s.order) > maxStoredResponses || s.bytes > maxStoredBytes {
		oldest := s.order[0]
		s.order = s.order[1:]
		s.bytes -= s.byID[oldest].size()
		delete(s.byID, oldest)
	}
}

func responseNotFound(id string) *apiError {
	return &apiError{http.StatusNotFound, "invalid_request_error", "Response with id '" + id + "' not found.", "response_id"}
}

// storedResponse serves GET /v1/responses/{response_id}.
func (s *Server) storedResponse(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("response_id")
	if stored := s.stored.get(id); stored != nil {
		writeJSON(w, http.StatusOK, stored.object)
		return
	}
	writeError(w, responseNotFound(id))
}

// cancelResponse serves POST /v1/responses/{response_id}/cancel: there are no background responses to cancel.
func (s *Server) cancelResponse(_ http.ResponseWriter, r *http.Request) *apiError {
	id := r.PathValue("response_id")
	if s.stored.get(id) == nil {
		return responseNotFound(id)
	}
	return &apiError{http.StatusBadRequest, "invalid_request_error", "Cannot cancel a synchronous response.", "response_id"}
}
