package edge

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// refusal is an answer of the edge itself.
type refusal struct {
	status  int
	code    string // stable name
	scope   tenant.Scope
	message string // for the client; holds nothing secret
	headers func(http.Header)
	close   bool // the connection must not be used again
}

// kinds are the words for the class of an error.
var kinds = map[int]struct{ openAI, anthropic string }{
	http.StatusBadRequest:            {"BadRequestError", "invalid_request_error"},
	http.StatusUnauthorized:          {"AuthenticationError", "authentication_error"},
	http.StatusForbidden:             {"PermissionDeniedError", "permission_error"},
	http.StatusRequestTimeout:        {"RequestTimeoutError", "timeout_error"},
	http.StatusRequestEntityTooLarge: {"RequestTooLargeError", "request_too_large"},
	http.StatusTooManyRequests:       {"RateLimitError", "rate_limit_error"},
	http.StatusInternalServerError:   {"InternalServerError", "api_error"},
	http.StatusServiceUnavailable:    {"ServiceUnavailableError", "overloaded_error"},
}

// body is the error object in the dialect of the path.
func (f *refusal) body(path string) []byte {
	kind := kinds[f.status]
	var v any
	if anthropic(path) {
		type object struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		}
		v = struct {
			Type  string `json:"type"`
			Error object `json:"error"`
		}{"error", object{kind.anthropic, f.message}}
	} else {
		type object struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    string  `json:"code"`
		}
		v = map[string]object{"error": {f.message, kind.openAI, nil, f.code}}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: edge: error object: " + err.Error())
	}
	return b
}

// anthropic reports whether clients of path speak Anthropic's dialect.
func anthropic(path string) bool {
	return path == "/v1/messages" || strings.HasPrefix(path, "/v1/messages/")
}

// write sends f. What a handler has put into the header before belongs to another answer and goes.
func (f *refusal) write(w http.ResponseWriter, path string) {
	h := w.Header()
	closing := f.close || strings.EqualFold(h.Get("Connection"), "close")
	clear(h)
	b := f.body(path)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if f.headers != nil {
		f.headers(h)
	}
	if closing {
		h.Set("Connection", "close")
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(b) // the client has left
}

func fromAuth(e *tenant.AuthError) *refusal {
	return &refusal{status: e.Status, code: string(e.Reason), message: e.Message, headers: e.SetHeaders}
}

func fromDecision(d tenant.Decision) *refusal {
	return &refusal{
		status: d.Status, code: string(d.Reason), scope: d.Scope, message: d.Message(), headers: d.SetHeaders,
		close: d.Status == http.StatusRequestEntityTooLarge, // the rest of the body is not waited for
	}
}

// stopping is the answer while the router is on its way out. Another replica can serve the request at once.
func stopping() *refusal {
	return &refusal{
		status: http.StatusServiceUnavailable, code: "stopping", message: "this router is stopping; try again", close: true,
		headers: func(h http.Header) { h.Set("Retry-After", "1") },
	}
}

func bug() *refusal {
	return &refusal{status: http.StatusInternalServerError, code: "internal-error", message: "the router failed on this request; its log says why", close: true}
}
