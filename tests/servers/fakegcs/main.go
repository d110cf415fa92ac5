// Runs fake-gcs-server with the writing half of Google's XML API before it, which it does not speak itself.
//
// MetaSync speaks the XML API. fake-gcs-server reads and lists in it, but writes and deletes by the JSON API alone; so a
// PUT with x-goog-if-generation-match becomes an upload with ifGenerationMatch. Whether a create is atomic is decided by
// fake-gcs-server. What is put on here is form: errors as XML with Google's codes, and the ETag that Google documents
// for the XML API (the MD5 in hex), where fake-gcs-server gives the MD5 in base64.
package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

type front struct {
	inner http.Handler
	host  string // the name that the server knows itself by: it may have been reached through a proxy
}

func (f front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Host = f.host
	bucket, object, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if strings.HasPrefix(r.URL.Path, "/storage/") || strings.HasPrefix(r.URL.Path, "/_internal/") {
		f.inner.ServeHTTP(w, r)
		return
	}
	object, _ = url.PathUnescape(object)
	switch {
	case r.Method == http.MethodPut && object != "":
		f.put(w, r, bucket, object)
	case r.Method == http.MethodDelete && object != "":
		answer := httptest.NewRecorder()
		f.inner.ServeHTTP(answer, r)
		if answer.Code >= 400 {
			f.refuse(w, r, bucket, answer.Code)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		f.inner.ServeHTTP(&reply{ResponseWriter: w, front: f, request: r, bucket: bucket}, r)
	}
}

func (f front) put(w http.ResponseWriter, r *http.Request, bucket, object string) {
	query := url.Values{"uploadType": {"media"}, "name": {object}}
	if match := r.Header.Get("x-goog-if-generation-match"); match != "" {
		query.Set("ifGenerationMatch", match)
	}
	upload := r.Clone(r.Context())
	upload.Method = http.MethodPost
	upload.Body = io.NopCloser(r.Body)
	upload.URL = &url.URL{Path: "/upload/storage/v1/b/" + bucket + "/o", RawQuery: query.Encode()}
	answer := httptest.NewRecorder()
	f.inner.ServeHTTP(answer, upload)
	if answer.Code != http.StatusOK {
		_, _ = io.Copy(io.Discard, r.Body) // or the connection would be closed on whoever is still sending
		f.refuse(w, r, bucket, answer.Code)
		return
	}
	var stored struct {
		Md5Hash    string `json:"md5Hash"`
		Generation string `json:"generation"`
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &stored); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("ETag", tag(stored.Md5Hash))
	w.Header().Set("x-goog-generation", stored.Generation)
	w.WriteHeader(http.StatusOK)
}

// refuse answers as Google does in XML.
func (f front) refuse(w http.ResponseWriter, r *http.Request, bucket string, status int) {
	code := map[int]string{412: "PreconditionFailed", 404: "NoSuchKey", 500: "InternalError"}[status]
	if status == http.StatusNotFound || status == http.StatusInternalServerError {
		answer := httptest.NewRecorder()
		f.inner.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://"+r.Host+"/storage/v1/b/"+bucket, nil))
		if answer.Code == http.StatusNotFound {
			status, code = http.StatusNotFound, "NoSuchBucket"
		}
	}
	w.Header().Del("Content-Length")
	w.Header().Set("Content-Type", "application/xml; charset=UTF-8")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, "<?xml version='1.0' encoding='UTF-8'?><Error><Code>%s</Code></Error>", code)
	}
}

// reply passes an answer on; a refusal is replaced, and a tag put into its documented form.
type reply struct {
	http.ResponseWriter
	front   front
	request *http.Request
	bucket  string
	refused bool
}

func (p *reply) WriteHeader(status int) {
	if status == http.StatusNotFound || status >= 500 {
		p.refused = true
		p.front.refuse(p.ResponseWriter, p.request, p.bucket, status)
		return
	}
	if value := p.Header().Get("ETag"); value != "" {
		p.Header().Set("ETag", tag(strings.Trim(value, `"`)))
	}
	p.ResponseWriter.WriteHeader(status)
}

func (p *reply) Write(data []byte) (int, error) {
	if p.refused {
		return len(data), nil
	}
	return p.ResponseWriter.Write(data)
}

func tag(md5 string) string {
	sum, err := base64.StdEncoding.DecodeString(md5)
	if err != nil {
		return `"` + md5 + `"`
	}
	return `"` + hex.EncodeToString(sum) + `"`
}

func main() {
	address := flag.String("address", "127.0.0.1:4443", "where to listen")
	root := flag.String("root", "", "folder for what it holds; in memory without one")
	flag.Parse()
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		StorageRoot: *root,
		Scheme:      "http",
		NoListener:  true,
		PublicHost:  *address,
		Writer:      os.Stderr,
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*address, front{server.HTTPHandler(), *address}))
}
