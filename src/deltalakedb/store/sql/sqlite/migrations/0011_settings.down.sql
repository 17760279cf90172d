DROP TABLE dl_settings;
