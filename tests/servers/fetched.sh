# To be sourced at the project's top: fetches every server of the tests, and says in the environment where each is.
# What cannot be had here is named in $missing, and what needs it is left out.
missing=""

fetch() {
    if path=$("tests/servers/$2"); then
        export "$1=$path"
    else
        missing="$missing $2"
    fi
}

fetch METASYNC_S3_SERVER versitygw.sh
fetch METASYNC_AZURITE azurite.sh
fetch METASYNC_FAKE_GCS fakegcs.sh
fetch METASYNC_SWIFT_SERVER swift_server.sh
fetch METASYNC_SSH_SERVER openssh.sh
fetch METASYNC_APACHE apache.sh
fetch METASYNC_WSGIDAV_PYTHON wsgidav.sh
fetch METASYNC_MOSQUITTO mosquitto.sh
fetch METASYNC_RABBITMQ rabbitmq.sh
